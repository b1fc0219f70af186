"""Does a test fail when a loss is wrong? `python -m tests.mutations [FILE ...]` changes one sign, weight, minimum or
target network at a time, runs the tests of that file and lists the changes that no test noticed.

Not part of the test suite: an hour on one core. A file is named as in TESTS; without any, all are tried.
"""

import ast
import contextlib
import importlib
import inspect
import io
import json
import os
import sys
import tempfile
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis.internal.conjecture.engine  # noqa: F401  what tests would import again and again
import pytest
import torch
import torch._dynamo

from tests import helpers  # noqa: F401  all of the package

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "c4rl"
SECONDS = 300  # a change that makes the tests hang is noticed too

TERMS, BATCHES = "algorithms/test_plugin_terms.py", "algorithms/test_two_batches.py"
LOGGED = "algorithms/test_logged_losses.py"
# file -> tests that have to notice
TESTS: dict[str, tuple[str, ...]] = {
    "algorithms/bc.py": ("algorithms/test_bc.py", BATCHES),
    "algorithms/td3.py": ("algorithms/test_td3_bc.py", TERMS),
    "algorithms/td3_bc.py": ("algorithms/test_td3_bc.py",),
    "algorithms/rebrac.py": ("algorithms/test_td3_bc.py",),
    "algorithms/algorithm.py": (
        *(TERMS, LOGGED),
        *("algorithms/test_td3_bc.py", "algorithms/test_policy_ingredients.py", "algorithms/test_tsrl.py"),
    ),
    "algorithms/losses.py": ("algorithms/test_losses.py", "algorithms/test_td3_bc.py", "algorithms/test_iql.py"),
    "algorithms/implicit_q.py": ("algorithms/test_iql.py", "algorithms/test_sorl.py"),
    "algorithms/iql.py": ("algorithms/test_iql.py", TERMS, LOGGED),
    "algorithms/sorl.py": ("algorithms/test_sorl.py", TERMS, LOGGED),
    "algorithms/sac.py": ("training/test_behaviour_agents.py",),
    "algorithms/doge.py": ("algorithms/test_doge.py", LOGGED),
    "algorithms/a2pr.py": ("algorithms/test_a2pr.py", LOGGED),
    "algorithms/cql.py": ("algorithms/test_cql.py", TERMS, LOGGED),
    "algorithms/tsrl.py": ("algorithms/test_tsrl.py", "algorithms/test_t_symmetry_dynamics.py", LOGGED),
    "algorithms/t_symmetry_dynamics.py": ("algorithms/test_t_symmetry_dynamics.py", "algorithms/test_tsrl.py"),
    "algorithms/bppo.py": ("algorithms/test_bppo.py", "algorithms/test_bppo_acceptance.py", TERMS, LOGGED),
    "algorithms/accepted_policies.py": ("algorithms/test_bppo_acceptance.py", "algorithms/test_bppo.py"),
    "plugins/c4/cross_covariance.py": ("c4/test_cross_covariance.py", "c4/test_cross_covariance_bias.py"),
    "plugins/c4/gaussian_mixture.py": (
        *("c4/test_gaussian_mixture.py", "c4/test_gaussian_mixture_against_scikit_learn.py"),
    ),
    "plugins/c4/cluster_sampler.py": ("c4/test_single_cluster_minibatches.py", "c4/test_row_weights.py"),
    "plugins/c4/divergences.py": ("c4/test_divergences.py",),
    "plugins/c4/divergence_term.py": (*("c4/test_divergence_term.py", "c4/test_row_weights.py", "c4/test_gate.py"),),
    "plugins/c4/plugin.py": ("c4/test_plugin_behaviour.py", "c4/test_gate.py", "c4/test_authors_switches.py"),
    "plugins/dr3.py": ("algorithms/test_dr3.py",),
    "plugins/returns.py": ("algorithms/test_returns.py",),
    "plugins/smoothing.py": ("algorithms/test_policy_at_other_states.py",),
    "plugins/corrective_labels.py": ("algorithms/test_policy_at_other_states.py",),
    "plugins/trajectory_styles.py": ("algorithms/test_trajectory_styles.py", "algorithms/test_sorl.py"),
    "plugins/style_sampler.py": ("algorithms/test_sorl.py",),
    "core/ops/losses.py": (*("algorithms/test_losses.py", "algorithms/test_td3_bc.py", "algorithms/test_cql.py"),),
    "core/ops/tanh_gaussian.py": ("algorithms/test_cql.py", "test_networks.py"),
    "core/ops/covariance.py": ("c4/test_cross_covariance.py", "c4/test_cross_covariance_bias.py"),
}
# no losses in here; what is logged is not looked at either
SKIPPED = {"__init__", "check", "plan", "launch_key", "state", "metrics", "policy_has_density", "select_rows", "phase"}
SWAPPED_CALLS = {
    "amin": "amax",
    "amax": "amin",
    "minimum": "maximum",
    "maximum": "minimum",
    "max": "min",
    "min": "max",
} | {
    "mean": "sum",
    "sum": "mean",
}
SWAPPED_NETWORKS = {
    "target_critic": "critic",
    "critic": "target_critic",
    "target_actor": "actor",
    "old_actor": "actor",
}
OPPOSITE = {ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Lt: ast.GtE, ast.LtE: ast.Gt}
OWN = "Adam asks for the gradients of its own network alone"
MEAN = "where g' or g is centred, the other's mean drops out"
FUSED = "g.shape[2] <= MOST_FUSED_ROWS"
LAST_BUT_ONE = "of four axes, 2 and -2 are the same"
STD = "advantage.std(1, keepdim=True) + 1e-10 -> "
DISTANCE = "(z - chosen[-1]).square().sum(2)"
ROW_WEIGHTS = "weights * row_weights.gather(1, batch.rows - self.buffer.offsets.unsqueeze(1)).unsqueeze(2)"
# changes that change nothing: file, function, what becomes what -> why
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("algorithms/cql.py", "CQL.update", "self.temperature.log.detach() -> self.temperature.log"): OWN,
    ("algorithms/cql.py", "CQL.update", "log_prob.detach() -> log_prob"): OWN,
    ("algorithms/cql.py", "CQL._conservative_losses", "excess.detach() -> excess"): OWN,
    ("algorithms/cql.py", "CQL.update", "policy.detach() -> policy"): "actions are drawn from it without gradients",
    ("algorithms/sac.py", "SAC.update", "self.temperature.log.detach() -> self.temperature.log"): OWN,
    ("algorithms/sac.py", "SAC.update", "log_prob.detach() -> log_prob"): OWN,
    ("algorithms/a2pr.py", "A2PR.update", "value.detach() -> value"): "it is compared with, no more",
    ("algorithms/bppo.py", "weighted_advantage", STD + "advantage.std(1, keepdim=True) - 1e-10"): "it keeps 0/0 away",
    ("algorithms/bppo.py", "weighted_advantage", STD + "advantage.std(1, keepdim=True) + 2 * 1e-10"): "the same",
    ("plugins/c4/divergences.py", "divergence_term", "-2 -> 2"): LAST_BUT_ONE,
    (
        "plugins/style_sampler.py",
        "StyleSampler.attach",
        "[config.styles] * stack.runs -> 2 * ([config.styles] * stack.runs)",
    ): "the largest of the list counts",
    **{
        ("plugins/trajectory_styles.py", "Trajectories._sizes", f"self.count + 1 -> {more}"): "they stay empty"
        for more in ("2 * self.count + 1", "self.count + 2 * 1")
    },
    (
        "plugins/trajectory_styles.py",
        "TrajectoryStyles.maximisation_step",
        "loss.detach() -> loss",
    ): "nobody follows its gradient",
    **{
        ("plugins/c4/gaussian_mixture.py", "kmeans_start", change): "rows and centres are weighted alike"
        for change in (
            f"{DISTANCE}.double() * valid -> 2 * ({DISTANCE}.double() * valid)",
            "(z - chosen[-1]).square().sum -> (z - chosen[-1]).square().mean",
            "nearest() * valid.unsqueeze(2) -> 2 * (nearest() * valid.unsqueeze(2))",
            "members.sum -> members.mean",
        )
    },
    ("plugins/c4/gaussian_mixture.py", "kmeans_start", "-1 -> 1"): "the size of that axis",
    ("plugins/c4/gaussian_mixture.py", "_standardise", "y.sum -> y.mean"): "only whether it is finite counts",
    (
        "plugins/c4/cluster_sampler.py",
        "_shuffled_order",
        "torch.arange(length, device=lengths.device) / length -> "
        "2 * (torch.arange(length, device=lengths.device) / length)",
    ): "rising, and below 2 for rows that are none",
    (
        "plugins/c4/divergence_term.py",
        "DivergenceTerm.refresh",
        f"{ROW_WEIGHTS} -> 2 * ({ROW_WEIGHTS})",
    ): "a fit normalises",
    ("algorithms/accepted_policies.py", "AcceptedPolicies.after_update", "self.old_actor -> self.actor"): "just copied",
    **{
        ("plugins/c4/cross_covariance.py", "WeightedPenalty.__call__", f"{x}.detach() -> {x}"): "a weight has no graph"
        for x in ("size", "td_loss")
    },
    ("core/ops/covariance.py", "cross_covariance", "g - mean -> g + mean"): MEAN,
    ("core/ops/covariance.py", "cross_covariance", "g - mean -> g - 2 * mean"): MEAN,
    ("core/ops/covariance.py", "_centred", "g * weight -> 2 * (g * weight)"): MEAN,
    ("core/ops/covariance.py", "cross_covariance_size", f"{FUSED} -> {FUSED.replace('<=', '>')}"): "it needs a GPU",
}


class Mutant(NamedTuple):
    file: str
    function: str  # with its class
    line: int
    change: str
    source: str  # of the whole changed file


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """What the expression may be replaced by."""
    if isinstance(node, ast.BinOp):
        swaps: dict[type[ast.operator], ast.operator] = {ast.Add: ast.Sub(), ast.Sub: ast.Add()}
        if type(node.op) in swaps:
            yield ast.BinOp(node.left, swaps[type(node.op)], node.right)
            yield ast.BinOp(doubled(node.left), node.op, node.right)
            yield ast.BinOp(node.left, node.op, doubled(node.right))
        if isinstance(node.op, ast.Mult | ast.Div):
            yield doubled(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE and len(node.ops) == 1:
        yield ast.Compare(node.left, [OPPOSITE[type(node.ops[0])]()], node.comparators)
    elif isinstance(node, ast.Attribute):
        if node.attr in SWAPPED_CALLS:
            yield ast.Attribute(node.value, SWAPPED_CALLS[node.attr], node.ctx)
        if node.attr in SWAPPED_NETWORKS and isinstance(node.value, ast.Name) and node.value.id == "self":
            yield ast.Attribute(node.value, SWAPPED_NETWORKS[node.attr], node.ctx)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        yield node.func.value


def doubled(node: ast.expr) -> ast.expr:
    return ast.BinOp(ast.Constant(2), ast.Mult(), node)


class Positions(ast.NodeVisitor):
    """Every expression of a loss: (function, parent, field, index or None)."""

    def __init__(self) -> None:
        self.found: list[tuple[str, ast.AST, str, int | None]] = []
        self.function = ""

    def generic_visit(self, node: ast.AST) -> None:
        for field, value in ast.iter_fields(node):
            for index, child in enumerate(value) if isinstance(value, list) else ((None, value),):
                if isinstance(child, ast.AST):
                    if self.function and isinstance(child, ast.expr):
                        self.found.append((self.function, node, field, index))
                    self.visit(child)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for method in (m for m in node.body if isinstance(m, ast.FunctionDef)):
            self.visit_FunctionDef(method, f"{node.name}.")

    def visit_FunctionDef(self, node: ast.FunctionDef, owner: str = "") -> None:
        outer = self.function
        self.function = outer or owner + node.name  # functions within functions count as theirs
        if node.name not in SKIPPED:
            for statement in node.body:
                self.visit(statement)
        self.function = outer

    def visit_Dict(self, node: ast.Dict) -> None:
        """Mostly what is logged."""

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_If(self, node: ast.If) -> None:
        """What fused kernels compute needs a GPU."""
        fused = "kernels_for" in ast.unparse(node.test)
        if self.function and not fused:
            self.found.append((self.function, node, "test", None))
        for part in [*([] if fused else [node.test, *node.body]), *node.orelse]:
            self.visit(part)

    def visit_Raise(self, node: ast.Raise) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        pass

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if self.function and node.value is not None:
            self.found.append((self.function, node, "value", None))
            self.visit(node.value)


def mutants(file: str) -> Iterator[Mutant]:
    tree = ast.parse((PACKAGE / file).read_text())
    positions = Positions()
    positions.visit(tree)
    for function, parent, field, index in positions.found:
        slot = getattr(parent, field)
        original = slot if index is None else slot[index]
        for replacement in changed(original):
            ast.copy_location(replacement, original)
            put(parent, field, index, replacement)
            source = ast.unparse(ast.fix_missing_locations(tree))
            put(parent, field, index, original)
            yield Mutant(
                file, function, original.lineno, f"{ast.unparse(original)} -> {ast.unparse(replacement)}", source
            )


def put(parent: ast.AST, field: str, index: int | None, value: ast.expr) -> None:
    if index is None:
        setattr(parent, field, value)
    else:
        getattr(parent, field)[index] = value


def module_of(file: str) -> Any:
    return importlib.import_module("c4rl." + file.removesuffix(".py").replace("/", "."))


def change_function(mutant: Mutant) -> None:
    """Give the function, wherever it has been imported to, the changed code."""
    found: Any = module_of(mutant.file)
    for name in mutant.function.split("."):
        found = vars(found)[name]
    found = getattr(found, "fget", found)  # of a property
    found = inspect.unwrap(getattr(found, "__func__", found))
    codes = [compile(mutant.source, mutant.file, "exec")]
    for code in codes:
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
    (found.__code__,) = (code for code in codes if code.co_qualname == mutant.function)


class Order:
    """For pytest: the fastest tests first, as measured by a run before."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes
        self.seconds: dict[str, float] = json.loads(notes.read_text()) if notes.exists() else {}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.seconds.get(item.nodeid, 0.0))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_sessionfinish(self) -> None:
        if not self.notes.exists():
            self.notes.write_text(json.dumps(self.seconds))


def run_tests(file: str, flag: str, plugins: list[object]) -> int:
    tests = [str(ROOT / "tests" / name) for name in TESTS[file]]
    return int(pytest.main([flag, "-qq", "-p", "no:cacheprovider", "-p", "no:xdist", *tests], plugins))


def noticed(mutant: Mutant, notes: Path) -> bool:
    """In a process of its own, which has imported all it needs before."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        if mutant.function:
            change_function(mutant)
        code = 1
        with contextlib.suppress(BaseException):
            code = run_tests(mutant.file, "-x", [Order(notes)])
        os._exit(0 if code == 0 else 1)
    for _ in range(SECONDS * 10):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status != 0
        time.sleep(0.1)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return True


def main(names: list[str]) -> int:
    torch.set_num_threads(1)
    survivors = 0
    for file in names or TESTS:
        with contextlib.redirect_stdout(io.StringIO()):
            run_tests(file, "--collect-only", [])  # imports them
        notes = Path(tempfile.mkdtemp()) / "seconds.json"
        if noticed(Mutant(file, "", 0, "", ""), notes):
            raise SystemExit(f"{file}: its tests fail without any change")
        tried = list(mutants(file))
        left = [m for m in tried if (file, m.function, m.change) not in EQUIVALENT and not noticed(m, notes)]
        survivors += len(left)
        print(f"{file}: {len(tried)} changes, {len(left)} that no test noticed", flush=True)
        for mutant in left:
            print(f"  line {mutant.line}, {mutant.function}: {mutant.change}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
