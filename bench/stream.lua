-- One streamed chat completion.
wrk.method = "POST"
wrk.body = '{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Say hello in one short sentence please."}],"max_tokens":16,"temperature":0.7,"stream":true}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")
