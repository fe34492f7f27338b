"""What a profile may ask of each engine: sources, how it spreads, and the flags and
environment that ``llmgw`` keeps for itself (CAT-03, CAT-04). Pure.

Adding an engine is one row in ``ENGINES``. The flags were read from the ``--help`` of
llama-server b10068 and vLLM 0.32, and from the documentation of SGLang 0.5.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

_OURS = "llmgw sets the address, the port and the served name itself"
_PLAIN = "routers reach engines by plain HTTP at /v1, and llmgw guards the way"
_KEYS = "keys are made and passed by llmgw; a catalog holds no secret"
_SOURCE = "the model comes from the profile's source"
_REVISION = "the revision is part of the source: hf:org/name@revision"
_CODE = "it lets a model or a caller run code or read files"
_PROMPTS = "it writes down or sends out what callers ask"
_CONTEXT = "use the profile's context"
_SLOTS = "use the profile's slots"
_CORES = "use the profile's cpu_cores"
_DEVICES = "use gpu_class and gpus: devices are placed by llmgw"
_NODES = "use the profile's nodes: llmgw starts the ranks and tells them of each other"
_TP = "use the profile's tp"
_PP = "use the profile's pp"
_DP = "use the profile's dp"
_LAUNCH = "use the profile's launch_mode"
_ADAPTERS = "write a model with adapter: {base, source}"
_METRICS = "llmgw reads the engine's metrics"
_OUTPUT = "llmgw keeps the engine's output itself"
_STOP = "llmgw decides how an engine is stopped"
_ENDS = "it ends at once instead of serving"
_FILE = "what a profile sets must be seen in the catalog: write the arguments out"
_PAGE = "the engine's own page stays off"
_OTHER = "it makes the engine something that routers cannot use"

ALLOWABLE = frozenset({_CODE, _PROMPTS})
"""Reasons that an operator may set aside for a flag (the cluster setting ``engines.allow``)."""

OFF_IS_FINE = ALLOWABLE | {_PAGE}
"""Reasons that say nothing against ``--no-FLAG``."""


def _flags(reason: str, names: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), reason)


@dataclass(frozen=True)
class EngineRules:
    """One engine.

    ``schemes`` are the source schemes it can load; ``denied`` maps a flag to the reason
    why a profile may not set it; ``environment`` are variables (``*`` at the end matches
    any rest) that would do the same. ``abbreviates``: its parser takes an unambiguous
    beginning for the whole flag, so a beginning of a denied flag is denied too, unless it
    is in ``complete``, the engine's own flags that happen to be one.

    ``spreads``: it splits a model as tp, pp and dp say; ``launch_modes`` are its ways over
    several nodes (none: one node). ``adapters``: it serves LoRA adapters (CAT-14).
    ``one_file``: its weights are one GGUF file, not a repository or a directory.
    """

    schemes: tuple[str, ...]
    denied: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    abbreviates: bool = False
    complete: frozenset[str] = frozenset()
    spreads: bool = False
    launch_modes: tuple[str, ...] = ()
    adapters: bool = False
    one_file: bool = False


_ANY_ENGINE = {
    **_flags(_CODE, "--trust-remote-code"),
    **_flags(_KEYS, "--api-key --api-key-file --hf-token"),
    **_flags(_OURS, "--host --port"),
}

_LLAMACPP = {
    **_ANY_ENGINE,
    **_flags(_OURS, "-a --alias --reuse-port --api-prefix"),
    **_flags("a replica of llama.cpp runs on one node", "--rpc"),
    **_flags(_PLAIN, "--ssl-key-file --ssl-cert-file"),
    **_flags(_KEYS, "-hft"),
    **_flags(
        _SOURCE,
        "-m --model -mu --model-url -dr --docker-repo -hf -hfr --hf-repo -hff --hf-file -hfv -hfrv --hf-repo-v"
        " -hffv --hf-file-v --models-dir --models-preset --models-max --models-autoload",
    ),
    **_flags(
        "the engine would fetch it itself: put the file on the nodes and name it with -md or --mmproj",
        "-hfd -hfrd --hf-repo-draft --spec-draft-hf -mmu --mmproj-url",
    ),
    **_flags(
        _CODE, "--tools -ag --agent --ui-mcp-proxy --webui-mcp-proxy --path --media-path --slot-save-path --props"
    ),
    **_flags(_PROMPTS, "--log-prompts-dir"),
    **_flags(_PAGE, "--ui --webui --ui-config --webui-config --ui-config-file --webui-config-file"),
    **_flags(_CONTEXT, "-c --ctx-size"),
    **_flags(_SLOTS, "-np --parallel"),
    **_flags(_CORES, "-t --threads"),
    **_flags(_DEVICES, "-dev --device --list-devices"),
    **_flags(_OUTPUT, "--log-file --log-disable"),
    **_flags(_METRICS, "--no-slots"),
    **_flags(_STOP, "--sse-ping-interval --sleep-idle-seconds"),
    **_flags(_ENDS, "-h --help --usage --version -cl --cache-list --completion-bash"),
}

_VLLM = {
    **_ANY_ENGINE,
    **_flags(_OURS, "--served-model-name --root-path"),
    **_flags(_PLAIN, "--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --enable-ssl-refresh"),
    **_flags(_OTHER, "--uds --grpc --grpc-port --tokens-only"),
    **_flags(_SOURCE, "--model --hf-config-path --download-dir"),
    **_flags(_REVISION, "--revision --code-revision"),
    **_flags(
        _CODE,
        "--allowed-local-media-path --middleware --tool-server --tool-parser-plugin --reasoning-parser-plugin"
        " --io-processor-plugin --logits-processors --worker-cls --worker-extension-cls --scheduler-cls"
        " --model-class-overrides --kv-transfer-config --ec-transfer-config --weight-transfer-config"
        " --log-config-file --logging-config --trust-request-chat-template --trust-request-mm-kwargs"
        " --enable-prompt-embeds --profiler-config",
    ),
    **_flags(
        _PROMPTS,
        "--enable-log-requests --enable-log-outputs --enable-log-deltas --max-log-len --otlp-traces-endpoint"
        " --kv-events-config --enable-trace-replay",
    ),
    **_flags(_FILE, "--config"),
    **_flags(_CONTEXT, "--max-model-len"),
    **_flags(_SLOTS, "--max-num-seqs"),
    **_flags(_DEVICES, "--device --device-ids"),
    **_flags(_TP, "-tp --tensor-parallel-size"),
    **_flags(_PP, "-pp --pipeline-parallel-size"),
    **_flags("its ranks are beside those that tp, pp and dp count", "-pcp --prefill-context-parallel-size"),
    **_flags(
        _DP,
        "-dp --data-parallel-size -dpl --data-parallel-size-local -dpa --data-parallel-address -dpb"
        " --data-parallel-backend -dpe --data-parallel-external-lb -dph --data-parallel-hybrid-lb"
        " -dpm --data-parallel-multi-port-external-lb -dpn --data-parallel-rank -dpr --data-parallel-start-rank"
        " -dpp --data-parallel-rpc-port --data-parallel-supervisor-port",
    ),
    **_flags(_NODES, "-n --nnodes -r --node-rank --master-addr --master-port --headless"),
    **_flags(_LAUNCH, "--distributed-executor-backend --ray-workers-use-nsight"),
    **_flags(_ADAPTERS, "--lora-modules --default-mm-loras"),
    **_flags(_METRICS, "--disable-log-stats"),
    **_flags(_STOP, "--shutdown-timeout"),
    **_flags(_ENDS, "-h --help --version -v"),
}

_SGLANG = {
    **_ANY_ENGINE,
    **_flags(_OURS, "--served-model-name --fastapi-root-path"),
    **_flags(_KEYS, "--admin-api-key"),
    **_flags(
        _PLAIN,
        "--ssl-keyfile --ssl-certfile --ssl-ca-certs --ssl-keyfile-password --enable-ssl-refresh --enable-http2",
    ),
    **_flags(_OTHER, "--grpc-mode --disaggregation-mode --encoder-only --language-only --smg-grpc-mode"),
    **_flags(_SOURCE, "--model --model-path --download-dir --decrypted-config-file --decrypted-draft-config-file"),
    **_flags(
        _SOURCE,
        "--remote-instance-weight-loader-seed-instance-ip --remote-instance-weight-loader-seed-instance-service-port"
        " --remote-instance-weight-loader-send-weights-group-ports --remote-instance-weight-loader-backend"
        " --remote-instance-weight-loader-start-seed-via-transfer-engine"
        " --checkpoint-engine-wait-weights-before-ready --modelopt-checkpoint-restore-path",
    ),
    **_flags(_REVISION, "--revision"),
    **_flags(
        _CODE,
        "--enable-custom-logit-processor --custom-sigquit-handler --custom-weight-loader --tool-server"
        " --file-storage-path --file-storage-pth --forward-hooks --debug-tensor-dump-output-folder"
        " --debug-tensor-dump-input-file --debug-tensor-dump-inject --modelopt-checkpoint-save-path"
        " --modelopt-export-path --hicache-storage-backend-extra-config --export-metrics-to-file-dir",
    ),
    **_flags(
        _PROMPTS,
        "--log-requests --log-requests-level --log-requests-format --log-requests-target --crash-dump-folder"
        " --enable-trace --otlp-traces-endpoint --export-metrics-to-file --enable-request-time-stats-logging"
        " --kv-events-config",
    ),
    **_flags(_FILE, "--config"),
    **_flags(_CONTEXT, "--context-length"),
    **_flags(_SLOTS, "--max-running-requests"),
    **_flags(_DEVICES, "--device --base-gpu-id --gpu-id-step"),
    **_flags(_TP, "--tp --tp-size --tensor-parallel-size"),
    **_flags(_PP, "--pp --pp-size --pipeline-parallel-size"),
    **_flags(_DP, "--dp --dp-size --data-parallel-size"),
    **_flags(_NODES, "--nnodes --node-rank --dist-init-addr --nccl-init-addr --nccl-port --use-ray"),
    **_flags(_ADAPTERS, "--lora-paths"),
    **_flags("llmgw switches the engine's metrics on itself", "--enable-metrics --metrics-http-port"),
    **_flags(_ENDS, "-h --help --version"),
}

_HUB_ENVIRONMENT = _flags(
    _SOURCE,
    "HF_HOME HF_ENDPOINT HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_HUB_OFFLINE TRANSFORMERS_CACHE TRANSFORMERS_OFFLINE"
    " HF_MODULES_CACHE MODELSCOPE_*",
)
_VLLM_ENVIRONMENT = {
    **_HUB_ENVIRONMENT,
    **_flags(_CODE, "VLLM_PLUGINS VLLM_ALLOW_INSECURE_SERIALIZATION VLLM_LOGGING_CONFIG_PATH VLLM_SERVER_DEV_MODE"),
    **_flags(_CODE, "VLLM_TORCH_PROFILER_DIR VLLM_CONFIG_ROOT VLLM_PATCH_TORCH_INCLUDE_DIR"),
    **_flags(_ADAPTERS, "VLLM_ALLOW_RUNTIME_LORA_UPDATING VLLM_LORA_RESOLVER_CACHE_DIR"),
    **_flags(_OURS, "VLLM_HOST_IP VLLM_PORT VLLM_RPC_BASE_PATH VLLM_LOOPBACK_IP"),
    **_flags(_DP, "VLLM_DP_*"),
    **_flags(_SOURCE, "VLLM_USE_MODELSCOPE VLLM_CACHE_ROOT VLLM_ASSETS_CACHE"),
    **_flags(_PROMPTS, "VLLM_DEBUG_LOG_API_SERVER_RESPONSE VLLM_USAGE_STATS_SERVER VLLM_USAGE_SOURCE"),
    **_flags(_OUTPUT, "VLLM_CONFIGURE_LOGGING"),
}
_SGLANG_ENVIRONMENT = {
    **_HUB_ENVIRONMENT,
    **_flags(_OURS, "SGLANG_HOST_IP SGLANG_PORT HOST_IP"),
    **_flags(_SOURCE, "SGLANG_USE_MODELSCOPE"),
    **_flags(_CODE, "SGLANG_EXTERNAL_MODEL_PACKAGE SGLANG_EXTERNAL_MM_MODEL_ARCH SGLANG_PLUGINS"),
    **_flags(_CODE, "SGLANG_EXTERNAL_MM_PROCESSOR_PACKAGE SGLANG_TORCH_PROFILER_DIR"),
    **_flags(_PROMPTS, "SGLANG_LOG_REQUEST_HEADERS"),
}

ENGINES: Mapping[str, EngineRules] = {
    "llamacpp": EngineRules(
        schemes=("file", "hf", "https"),
        denied=_LLAMACPP,
        environment={
            **_flags("use args, context, slots or cpu_cores", "LLAMA_ARG_*"),
            **_flags(_CODE, "GGML_BACKEND_PATH"),
            **_flags(_SOURCE, "LLAMA_CACHE MODEL_ENDPOINT"),
        },
        one_file=True,
    ),
    "vllm": EngineRules(
        schemes=("hf", "file"),
        denied=_VLLM,
        environment=_VLLM_ENVIRONMENT,
        abbreviates=True,
        complete=frozenset({"--reasoning-parser"}),
        spreads=True,
        launch_modes=("native", "ray"),
        adapters=True,
    ),
    "sglang": EngineRules(
        schemes=("hf", "file"),
        denied=_SGLANG,
        environment=_SGLANG_ENVIRONMENT,
        abbreviates=True,
        spreads=True,
        launch_modes=("native",),
        adapters=True,
    ),
    "sim": EngineRules(
        schemes=("sim",),
        denied={
            **_ANY_ENGINE,
            **_flags(_OURS, "--alias --served-name --served-model-name"),
            **_flags(_SOURCE, "--model"),
            **_flags(_NODES, "--nnodes --node-rank --rendezvous"),
            **_flags(_ENDS, "-h --help --version"),
        },
        abbreviates=True,
        spreads=True,
        launch_modes=("native",),
    ),
}
"""Every engine a profile can name."""

SCHEMES = ("file", "sim", "hf", "https", "mirror")
"""Every source scheme that has a meaning."""

NOT_YET = ("mirror",)
"""Schemes that no part of this release knows how to fetch. The one place that says so."""

ENVIRONMENT: Mapping[str, str] = {
    **_flags(
        "it changes which code the engine runs",
        "LD_* PYTHON* PATH HOME IFS ENV BASH_ENV SHELLOPTS GCONV_PATH GLIBC_TUNABLES MALLOC_* CUDA_INJECTION64_PATH"
        " CUDA_INJECTION32_PATH NVTX_INJECTION64_PATH OMP_TOOL_LIBRARIES TRITON_PLUGIN_PATHS VK_LAYER_PATH"
        " VK_ADD_LAYER_PATH VK_INSTANCE_LAYERS VK_DRIVER_FILES VK_ADD_DRIVER_FILES VK_ICD_FILENAMES OCL_ICD_*"
        " NCCL_NET_PLUGIN NCCL_TUNER_PLUGIN NCCL_PROFILER_PLUGIN NCCL_ENV_PLUGIN NCCL_GIN_PLUGIN NCCL_CONF_FILE",
    ),
    **_flags(
        _DEVICES,
        "CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES GGML_VK_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES"
        " ZE_AFFINITY_MASK ONEAPI_DEVICE_SELECTOR CUDA_DEVICE_ORDER CUDA_MPS_*",
    ),
    **_flags(_NODES, "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK MASTER_ADDR MASTER_PORT RAY_*"),
    **_flags(_PROMPTS, "OTEL_*"),
    **_flags("llmgw sets these itself", "LLMGW_*"),
}
"""Variables that no engine gets from a profile. The rest of ``NCCL_*`` is the profile's own."""

KEYS = _KEYS
