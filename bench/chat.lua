-- One chat completion, not streamed. BENCH_DELAY_MS, if set, is waited before each.
wrk.method = "POST"
wrk.body = '{"model":"m","messages":[{"role":"system","content":"You are a helpful assistant."},{"role":"user","content":"Say hello in one short sentence please."}],"max_tokens":16,"temperature":0.7}'
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_KEY")

local wait = tonumber(os.getenv("BENCH_DELAY_MS") or "0")
if wait > 0 then
  -- Spread, so that the connections do not march in step.
  function delay() return math.random(0, 2 * wait) end
end
