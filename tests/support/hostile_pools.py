"""Pools of somebody who means harm, or of a generator gone wrong: what each says, and what has to become of it.

Beside what refused_pools.py has. Three ends are allowed: the API server refuses the pool and names the field; the
operator holds it and a condition says why; or it is harmless, since what it says reaches the pods as mere data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvik_operator.names import Reason

SOURCE: Final = "file:///models/x/model.gguf"
HUB: Final = "hf://org/name@main"
RTL, NUL, ZERO_WIDTH, EMOJI = "\u202e", "\x00", "\u200b\ufeff", "\U0001f600"
NASTY: Final = {
    "right_to_left": f"a{RTL}b",
    "nul": f"a{NUL}b",
    "zero_width": f"a{ZERO_WIDTH}b",
    "emoji": f"a{EMOJI}b",
    "newline": "a\nb",
    "escape": "a\x1b[31m\x7f\x85b",
    "line_separator": "a\u2028b",
    "shell": "$(reboot) `reboot`; reboot | $X 'a\" \\",
}
"""Texts that have broken parsers, terminals and shells."""


@dataclass(frozen=True, slots=True)
class Hostile:
    """`spec` and `metadata` go over a smallest pool. Without `refused` and `held` it is harmless."""

    spec: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None
    """What the API server's message must hold: the field."""
    held: Reason | None = None
    """Why the pool is Degraded."""
    told: str = ""
    """Words of that condition's message."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


def _model(source: str = SOURCE, **more: Any) -> dict[str, Any]:
    return {"model": {"source": source, **more}}


def _template(**parts: Any) -> dict[str, Any]:
    return {"template": parts}


def _memory(quantity: str | int) -> dict[str, Any]:
    return {"resources": {"device": "CPU", "requests": {"memory": quantity}}}


def _disk(quantity: str | int) -> dict[str, Any]:
    return {"kvCache": {"swapSpace": "1Gi", "diskCache": {"size": quantity}}}


def _keys(name: str, key: str = "keys") -> dict[str, Any]:
    return {"apiKeys": {"secretRef": {"name": name, "key": key}}}


def _accelerator(name: str) -> dict[str, Any]:
    return {"resources": {"device": "GPU", "accelerators": {"resourceName": name}}}


def _nodes(*terms: Any) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return _template(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}})


def _term(key: str = "a", values: tuple[str, ...] = ("b",)) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(values)}]}


def _tolerates(**toleration: Any) -> dict[str, Any]:
    return _template(tolerations=[{"operator": "Exists", **toleration}])


def _spread(skew: float) -> dict[str, Any]:
    constraint = {"maxSkew": skew, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    return _template(topologySpreadConstraints=[constraint])


def _env(name: str, value: str = "1") -> dict[str, Any]:
    return _template(env=[{"name": name, "value": value}])


MEMORY: Final = "spec.resources.requests.memory"
KEYS_NAME: Final = "spec.apiKeys.secretRef.name"
KEYS_KEY: Final = "spec.apiKeys.secretRef.key"
ACCELERATOR: Final = "spec.resources.accelerators.resourceName"
NODES: Final = "spec.template.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"

HOSTILE: Final[Mapping[str, Hostile]] = {
    # Ways to the host, to privileges and to what belongs to others.
    "pod_spec_beside_the_template": Hostile({"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}, '"spec.volumes"'),
    "profile_by_annotation": Hostile(
        _template(annotations={"seccomp.security.alpha.kubernetes.io/pod": "unconfined"}), "spec.template.annotations"
    ),
    "mirror_pod": Hostile(
        _template(annotations={"kubernetes.io/config.mirror": "x"}), "spec.template.annotations: Forbidden: keys under"
    ),
    "claim_outside": Hostile(_model("pvc://../x"), "spec.model.source"),
    "claim_that_is_no_name": Hostile(_model("pvc://a.-b/x"), "spec.model.source"),
    "foreign_secret": Hostile(_model(HUB, secretRef={"name": "kube-system/admin"}), "spec.model.secretRef.name"),
    "secret_climbs_up": Hostile(_model(HUB, secretRef={"name": "../secrets/x"}), "spec.model.secretRef.name"),
    "foreign_keys": Hostile(_keys("kube-system/admin"), KEYS_NAME),
    "keys_climb_up": Hostile(_keys("../secrets/x"), KEYS_NAME),
    "keys_of_an_entry_above": Hostile(_keys("clients", "../../token"), KEYS_KEY),
    "keys_of_hidden_dots": Hostile(_keys("clients", "..data"), KEYS_KEY),
    "keys_of_a_dot": Hostile(_keys("clients", "."), KEYS_KEY),
    "keys_of_an_entry_with_a_variable": Hostile(_keys("clients", "$(HOME)"), KEYS_KEY),
    "keys_of_an_entry_with_newline": Hostile(_keys("clients", "keys\n"), KEYS_KEY),
    "keys_of_a_long_entry": Hostile(_keys("clients", "k" * 254), KEYS_KEY),
    "secret_with_nul": Hostile(_model(HUB, secretRef={"name": f"a{NUL}"}), "spec.model.secretRef.name"),
    "foreign_pull_secret": Hostile(
        _template(imagePullSecrets=[{"name": "kube-system/x"}]), "spec.template.imagePullSecrets[0].name"
    ),
    "secrets_of_the_service_account": Hostile(
        _template(serviceAccountAnnotations={"kubernetes.io/enforce-mountable-secrets": "true"})
    ),
    "native_accelerator": Hostile(_accelerator("kubernetes.io/x"), ACCELERATOR),
    "quota_as_accelerator": Hostile(_accelerator("requests.nvidia.com/gpu"), ACCELERATOR),
    "accelerator_with_a_long_name": Hostile(_accelerator("a" * 250 + "/b"), ACCELERATOR),
    "unknown_priority": Hostile(
        _template(priorityClassName="nobodys"), held=Reason.PODS_REFUSED, told="no PriorityClass with name nobodys"
    ),
    "runtime_of_the_system": Hostile(
        _template(runtimeClassName="system-node-critical"), held=Reason.PODS_REFUSED, told="system-node-critical"
    ),
    "runtime_climbs_up": Hostile(
        _template(runtimeClassName="../x"), held=Reason.APPLY_REFUSED, told="spec.template.spec.runtimeClassName"
    ),
    "tolerates_everything": Hostile(_tolerates()),
    "controller_of_the_api_server": Hostile(
        metadata={"name": "kubernetes"}, held=Reason.FOREIGN_OBJECT, told="Service kubernetes"
    ),
    # Variables that would reach the engine or its tools.
    "lower_case_variable": Hostile(_env("kvik_port")),
    "variable_with_equals": Hostile(_env("A=B"), "spec.template.env[0].name"),
    "variable_with_tab": Hostile(_env("KVIK\tX"), "spec.template.env[0].name"),
    "path": Hostile(_env("PATH"), "spec.template.env[0].name"),
    "compiler": Hostile(_env("CC", "/models/claim/sh"), "spec.template.env[0].name"),
    "assembler": Hostile(_env("TRITON_PTXAS_PATH", "/models/claim/sh"), "spec.template.env[0].name"),
    "cuda_injection": Hostile(_env("CUDA_INJECTION64_PATH", "x"), "spec.template.env[0].name"),
    "nccl_plugin": Hostile(_env("NCCL_NET_PLUGIN", "x"), "spec.template.env[0].name"),
    "tls_keys_to_a_file": Hostile(_env("SSLKEYLOGFILE", "/tmp/x"), "spec.template.env[0].name"),
    "expansion": Hostile(_env("A", "$(HOME) $$(HOME) $(KVIK_PORT)")),
    # Sizes.
    "ten_thousand_variables": Hostile(
        _template(env=[{"name": f"E{n}"} for n in range(10_000)]), "spec.template.env: Too many: 10000"
    ),
    "a_megabyte_in_one_text": Hostile(_tolerates(key="v" * 1_000_000), "spec.template.tolerations[0].key: Too long"),
    "a_megabyte_in_many_texts": Hostile(
        _nodes(_term(values=tuple(f"{n:060}" for n in range(16_000)))),
        f"{NODES}[0].matchExpressions[0].values: Too many",
    ),
    "many_terms": Hostile(_nodes(*[_term()] * 5000), f"{NODES}: Too many: 5000"),
    "annotations_of_more_than_256_kib": Hostile(
        _template(annotations={f"a{n}": EMOJI * 2100 for n in range(32)}), held=Reason.APPLY_REFUSED, told="Too long"
    ),
    "long_label_key": Hostile(_template(labels={"a" * 64: "x"}), "spec.template.labels"),
    "label_key_in_capitals": Hostile(_template(labels={"KVIK.dev/pool": "x"}), "spec.template.labels"),
    "label_of_the_deployment": Hostile(_template(labels={"pod-template-hash": "x"})),
    "labels_of_the_pool": Hostile(metadata={"labels": {"a": "b" * 64}}, refused="metadata.labels"),
    "annotations_of_the_pool": Hostile(metadata={"annotations": {"a": "b" * 300_000}}, refused="metadata.annotations"),
    "long_name": Hostile(metadata={"name": "a" * 64}, refused="metadata.name"),
    "name_with_an_emoji": Hostile(metadata={"name": EMOJI}, refused="metadata.name"),
    # Numbers.
    "too_many_bytes": Hostile(_memory("1e30"), held=Reason.INVALID_SPEC, told=f"{MEMORY}: '1e30' is out of range"),
    "very_many_bytes": Hostile(_memory("9999999999999999999E")),
    "too_few_bytes": Hostile(_memory("1e-19"), held=Reason.INVALID_SPEC, told=MEMORY),
    "a_nano_byte": Hostile(_memory("1n")),
    "negative_bytes": Hostile(_memory("-1"), MEMORY),
    "no_number": Hostile(_memory("NaN"), MEMORY),
    "half_an_exponent": Hostile(_memory("1e0.5"), MEMORY),
    "beyond_64_bits": Hostile(_memory(99999999999999999999), MEMORY),
    "swap_space_of_all": Hostile({"kvCache": {"swapSpace": "9999999999999999999E"}}),
    "disk_cache_of_all": Hostile(_disk("9999999999999999999E")),
    "disk_cache_of_too_much": Hostile(
        _disk("1e30"), held=Reason.INVALID_SPEC, told="spec.kvCache.diskCache.size: '1e30'"
    ),
    "negative_disk_cache": Hostile(_disk("-1Gi"), "spec.kvCache.diskCache.size"),
    "disk_cache_of_a_nano_byte": Hostile(_disk("1n")),
    "int32_and_one": Hostile({"batching": {"maxRequests": 2**31}}, "spec.batching.maxRequests"),
    "int64_and_one": Hostile({"batching": {"maxRequests": 2**63}}, "spec.batching.maxRequests"),
    "float": Hostile({"batching": {"maxRequests": 1e300}}, "spec.batching.maxRequests"),
    "whole_float": Hostile({"batching": {"maxRequests": 8.0}}),
    "seconds_beyond_int64": Hostile(
        _tolerates(effect="NoExecute", tolerationSeconds=2**63), "spec.template.tolerations[0].tolerationSeconds"
    ),
    "seconds_of_int64": Hostile(_tolerates(effect="NoExecute", tolerationSeconds=2**63 - 1)),
    "skew_of_none": Hostile(_spread(0), held=Reason.APPLY_REFUSED, told="maxSkew"),
    "skew_beyond_int32": Hostile(_spread(2**31), held=Reason.APPLY_REFUSED, told="maxSkew"),
    "skew_of_1e30": Hostile(_spread(1e30), "spec.template.topologySpreadConstraints[0].maxSkew"),
    # Durations.
    "years": Hostile({"startup": {"timeout": "99999h99999h"}}, "spec.startup.timeout"),
    "ttft_of_years": Hostile({"slo": {"ttft": "99999h99999h99999h99999h"}}),
    "other_digits": Hostile({"slo": {"ttft": "\u0661s"}}, "spec.slo.ttft"),
    "duration_and_newline": Hostile({"slo": {"ttft": "1s\n"}}, "spec.slo.ttft"),
    "nothing_in_two_units": Hostile({"slo": {"ttft": "0h0ms"}}, "spec.slo.ttft"),
    # Sources and names that become arguments.
    "flag_as_name": Hostile(_model(name="--help"), "spec.model.name"),
    "newline_in_the_name": Hostile(_model(name="a\n"), "spec.model.name"),
    "newline_in_the_digest": Hostile(_model(digest="sha256:" + "0" * 64 + "\n"), "spec.model.digest"),
    "shell_in_the_source": Hostile(_model("file:///models/$(reboot);`reboot`|x")),
    "flag_in_the_source": Hostile(_model("file:///models/--help")),
    "encoded_way_up": Hostile(_model("file:///models/%2e%2e/%2e%2e/etc")),
    "emoji_in_the_source": Hostile(_model(f"file:///models/{EMOJI}"), "spec.model.source"),
    # Shapes.
    "list_for_an_object": Hostile({"template": []}, "spec.template"),
    "no_terms": Hostile(_nodes(), held=Reason.APPLY_REFUSED, told="nodeSelectorTerms"),
    "emoji_as_node_label": Hostile(_nodes(_term(EMOJI)), held=Reason.APPLY_REFUSED, told="matchExpressions[0].key"),
    "version_of_all_nines": Hostile({"engine": {"version": "999999.999999.999999"}}),
    # Text where any text may stand.
    "annotations_of_any_text": Hostile(_template(annotations=NASTY)),
    "variables_of_any_text": Hostile(
        _template(env=[{"name": name, "value": text} for name, text in NASTY.items() if NUL not in text])
    ),
    "variable_with_nul": Hostile(_env("A", NUL), "spec.template.env[0].value"),
}
TYPICAL: Final = frozenset(
    {"annotations_of_any_text", "variables_of_any_text", "very_many_bytes", "a_nano_byte", "tolerates_everything"}
)
"""Of the harmless ones, those that have ever been trouble; the operator takes its time for each that it serves."""
