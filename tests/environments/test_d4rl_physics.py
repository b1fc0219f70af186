"""Models are compiled as D4RL's MuJoCo compiled them: masses, margins, collisions, quaternions, integration."""

from pathlib import Path

import mujoco
import numpy as np
import pytest

from c4rl.environments import d4rl_physics
from c4rl.environments.d4rl_physics import compile_model
from c4rl.environments.locomotion import gymnasium_environment

# written, inherited and measured capsules; two on one body; a body whose inertia is given
ZOO = """
<mujoco>
  <default><default class="limb"><geom type="capsule" size=".1 .3" density="500"/></default></default>
  <worldbody>
    <geom type="plane" size="1 1 1"/>
    <body name="written"><freejoint/><geom type="capsule" size=".2 .5" euler="90 0 0" pos="0 1 0"/>
      <body name="inherited" pos="1 0 0"><joint/><geom class="limb"/></body>
    </body>
    <body name="measured"><freejoint/><geom type="capsule" size=".1" fromto="0 0 0 0 0 .8"/></body>
    <body name="pair"><freejoint/>
      <geom type="capsule" size=".1 .2" pos="1 0 0"/><geom type="capsule" size=".1 .2" pos="-1 0 0"/>
    </body>
    <body name="given"><freejoint/><inertial pos="0 0 1" mass="3" diaginertia=".3 .2 .1"/>
      <geom type="capsule" size=".1 .2"/>
    </body>
    <body name="ball"><freejoint/><geom type="sphere" size=".1"/></body>
  </worldbody>
</mujoco>
"""


def cylinder(radius: float, half_length: float, density: float = 1000) -> tuple[float, list[float]]:
    """Mass and inertia (two across, one along) that MuJoCo gave a capsule: those of a cylinder of length 2h + r."""
    length = 2 * half_length + radius
    mass = density * np.pi * radius**2 * length
    return mass, [mass * (3 * radius**2 + length**2) / 12] * 2 + [mass * radius**2 / 2]


def test_capsules_weigh_as_cylinders_however_they_are_written() -> None:
    model = compile_model(ZOO)
    sizes = {"written": (0.2, 0.5), "inherited": (0.1, 0.3, 500), "measured": (0.1, 0.4)}
    for name, size in sizes.items():
        mass, inertia = cylinder(*size)
        assert model.body(name).mass[0] == pytest.approx(mass, rel=1e-12)
        np.testing.assert_allclose(np.sort(model.body(name).inertia), np.sort(inertia), rtol=1e-9)
    np.testing.assert_allclose(model.body("written").ipos, [0, 1, 0], atol=1e-12)
    mass, (across, _, along) = cylinder(0.1, 0.2)
    assert model.body("pair").mass[0] == pytest.approx(2 * mass, rel=1e-12)
    expected = [2 * across, 2 * (across + mass), 2 * (along + mass)]  # both are 1 away from the middle, along x
    np.testing.assert_allclose(np.sort(model.body("pair").inertia), np.sort(expected), rtol=1e-9)


def test_bodies_without_capsules_and_given_inertias_are_left_alone() -> None:
    ours, theirs = compile_model(ZOO), mujoco.MjModel.from_xml_string(ZOO)
    for name in ("given", "ball"):
        for field in ("mass", "inertia", "ipos", "iquat"):
            np.testing.assert_allclose(
                getattr(ours.body(name), field), getattr(theirs.body(name), field), rtol=1e-15, atol=1e-15
            )
    np.testing.assert_array_equal(ours.geom_type, theirs.geom_type)
    np.testing.assert_array_equal(ours.geom_size, theirs.geom_size)
    np.testing.assert_array_equal(ours.geom_pos, theirs.geom_pos)


def test_a_total_mass_is_kept() -> None:
    assert gymnasium_environment("HalfCheetah-v4").unwrapped.model.body_mass.sum() == pytest.approx(14, rel=1e-12)


@pytest.mark.parametrize("margins", [(0.02, 0.02), (0.02, 0.0), (0.0, 0.02)])
@pytest.mark.parametrize(("gap", "contacts"), [(0.019, 1), (0.021, 0)])
def test_contacts_begin_at_the_larger_margin(margins: tuple[float, float], gap: float, contacts: int) -> None:
    model = compile_model(
        f"""<mujoco><worldbody><geom type="plane" size="1 1 1" margin="{margins[0]}"/>
        <body pos="0 0 {0.1 + gap}"><freejoint/><geom type="sphere" size=".1" margin="{margins[1]}"/></body>
        </worldbody></mujoco>"""
    )
    data = mujoco.MjData(model)
    mujoco.mj_forward(model, data)
    assert data.ncon == contacts
    assert not contacts or data.contact.includemargin[0] == pytest.approx(0.02, rel=1e-12)


def test_margins_that_no_sum_can_stand_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(d4rl_physics, "_SUMS_MARGINS", True)
    geoms = "".join(f'<geom type="sphere" size=".1" margin="{margin}"/>' for margin in (0.01, 0.02))
    with pytest.raises(ValueError, match=r"found \[0.01, 0.02\], expected one value"):
        compile_model(f"<mujoco><worldbody>{geoms}</worldbody></mujoco>")


def test_convex_pairs_collide_as_they_did() -> None:
    flags = compile_model(ZOO).opt.disableflags
    for name in ("mjDSBL_NATIVECCD", "mjDSBL_MULTICCD"):
        bit = getattr(mujoco.mjtDisableBit, name, None)
        assert bit is None or flags & int(bit)


def test_reset_normalises_quaternions() -> None:
    ant = gymnasium_environment("Ant-v4")
    for seed in range(5):
        observation, _ = ant.reset(seed=seed)
        assert np.linalg.norm(observation[1:5]) == pytest.approx(1, abs=1e-12)
        np.testing.assert_array_equal(observation[:13], ant.unwrapped.data.qpos[2:])


@pytest.mark.skipif(d4rl_physics._ROTATES_IN_RUNGE_KUTTA, reason="MuJoCo 4.0 changed its own; rows of Ant prove ours")
def test_runge_kutta_is_mujocos_before_4() -> None:
    ant = gymnasium_environment("Ant-v4").unwrapped
    ant.reset(seed=0)
    ours, theirs, rng = mujoco.MjData(ant.model), ant.data, np.random.default_rng(0)
    for _ in range(100):
        ours.qpos[:], ours.qvel[:], ours.time = theirs.qpos, theirs.qvel, theirs.time
        ours.ctrl[:] = theirs.ctrl[:] = rng.uniform(-1, 1, ant.model.nu)
        d4rl_physics._runge_kutta(ant.model, ours)
        mujoco.mj_step(ant.model, theirs)
        for name in ("qpos", "qvel", "xpos", "time"):
            np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=0, atol=1e-7)


def test_files_with_includes_and_meshes_compile_from_any_folder(tmp_path: Path) -> None:
    (tmp_path / "parts" / "meshes").mkdir(parents=True)
    corners = ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    faces = ((1, 3, 2), (1, 2, 4), (2, 3, 4), (1, 4, 3))
    lines = [f"v {x} {y} {z}" for x, y, z in corners] + [f"f {a} {b} {c}" for a, b, c in faces]
    (tmp_path / "parts" / "meshes" / "corner.obj").write_text("\n".join(lines))
    (tmp_path / "parts" / "limb.xml").write_text(
        "<mujocoinclude><body name='limb'><freejoint/><geom type='capsule' size='.1 .2'/></body></mujocoinclude>"
    )
    (tmp_path / "scene.xml").write_text(
        "<mujoco><compiler meshdir='parts/meshes' coordinate='local'/><asset><mesh file='corner.obj'/></asset>"
        "<worldbody><geom type='mesh' mesh='corner'/><include file='parts/limb.xml'/></worldbody></mujoco>"
    )
    model = compile_model(tmp_path / "scene.xml")
    assert model.nmesh == 1
    assert model.body("limb").mass[0] == pytest.approx(cylinder(0.1, 0.2)[0], rel=1e-12)
