"""The simulator decides nothing itself: what decides in the fleet decides here, from the same modules."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[3] / "src" / "shoal"
SIM = sorted((SOURCE / "sim").rglob("*.py"))
DECISIONS = {
    "routing": ("route", "pick", "keep", "hits", "charged"),
    "admission": ("judge", "refusal", "enqueue", "order", "patience"),
    "batching": ("schedule", "complete", "propose", "quiet"),
    "breaker": ("allows", "trip", "admit"),
    "retry": ("retry", "resume", "take"),
    "health": ("hangs", "on_check", "judge_stragglers", "on_crash"),
    "split": ("wants", "prefill_request", "after_failure"),
}
"""Methods that decide, by what they decide."""
USED = {
    "gateway.py": {"build_router", "Admission", "RetryPolicy", "Dispatch", "ReplicaAccounts", "TokenEstimator"},
    "legs.py": {"ReplicaAccount"},
    "replica.py": {"CountedScheduler"},
    "health.py": {"HealthJudge", "RestartPolicy"},
    "split.py": {"SplitPolicy", "HandoffCounts"},
}


def test_no_decision_is_defined_here() -> None:
    names = {name for methods in DECISIONS.values() for name in methods}
    found = [
        f"{path.name}:{node.lineno} defines {node.name}"
        for path in SIM
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name in names
    ]
    assert not found, "\n".join(found)


def test_policies_are_used_as_they_are() -> None:
    """No class here derives from one that decides, but for an account that knows its replica."""
    policy = {
        node.name
        for path in (SOURCE / "policy").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    derived = {
        (node.name, ast.unparse(base))
        for path in SIM
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base) in policy
    }
    assert derived == {("SimulatedAccount", "ReplicaAccount")}


def test_every_policy_of_the_fleet_is_used() -> None:
    for name, wanted in USED.items():
        tree = ast.parse((SOURCE / "sim" / name).read_text(encoding="utf-8"))
        imported = {
            alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shoal.policy")
            for alias in node.names
        }
        assert wanted <= imported, f"{name} lacks {wanted - imported}"
