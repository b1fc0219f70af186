"""D4RL's physics (MuJoCo 2.0) on a current MuJoCo: models are compiled and stepped so that they move as they did then.

Five things have changed in MuJoCo since, and this module reverses them all; docs/environments.md has the proof. If you
change what this module computes, increase PHYSICS in environments/tasks.py.

- A capsule had the mass and inertia of a cylinder: its own middle, longer by half the radius at both ends (to 2.1.1).
- The margin of a contact was the larger of its geoms' margins (to 3.4), not their sum.
- Convex pairs collided by libccd (to 3.2), with one contact each (to 3.7).
- Setting a state normalised the quaternions in it (to 3.1.6 at least).
- Runge-Kutta averaged angular velocities as if they were linear (to 3.17).

The XML is edited as text, because MuJoCo's own editor, MjSpec, exists only from 3.2 on.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import mujoco
import numpy as np

from c4rl.core.array import Array

_VERSION = tuple(int(part) for part in mujoco.__version__.split(".")[:2])
_SUMS_MARGINS = _VERSION >= (3, 5)
_ROTATES_IN_RUNGE_KUTTA = _VERSION >= (4, 0)


class D4RLPhysics:
    """Mix-in before a MujocoEnv of gymnasium or gymnasium-robotics: the environment runs on the repaired model."""

    fullpath: str
    model: mujoco.MjModel
    data: mujoco.MjData

    def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
        model = compile_model(Path(self.fullpath))
        return model, mujoco.MjData(model)

    def _step_mujoco_simulation(self, ctrl: Array, n_frames: int) -> None:
        self.data.ctrl[:] = ctrl
        step(self.model, self.data, n_frames)

    def set_state(self, qpos: Array, qvel: Array) -> None:
        qpos = np.array(qpos, np.float64)
        mujoco.mj_normalizeQuat(self.model, qpos)
        super().set_state(qpos, qvel)  # type: ignore[misc]


def compile_model(source: str | Path) -> mujoco.MjModel:
    """The repaired model of an XML text, or of an XML file with what it includes."""
    root = _read(source) if isinstance(source, Path) else ElementTree.fromstring(source)
    for compiler in root.findall("compiler"):
        compiler.attrib.pop("coordinate", None)  # "local", the only value left, is refused by some versions
    _make_inertias_explicit(root)
    model = _compile(root)
    if _SUMS_MARGINS:
        model.geom_margin[:] = _half_of_the_largest(model.geom_margin)
    for routine in ("NATIVECCD", "MULTICCD"):  # flags that older versions do not have
        model.opt.disableflags |= int(getattr(mujoco.mjtDisableBit, f"mjDSBL_{routine}", 0))
    return model


def step(model: mujoco.MjModel, data: mujoco.MjData, frames: int) -> None:
    """`mj_step`, `frames` times."""
    # more positions than velocities: some are quaternions
    if _ROTATES_IN_RUNGE_KUTTA and model.nq > model.nv and model.opt.integrator == mujoco.mjtIntegrator.mjINT_RK4:
        for _ in range(frames):
            _runge_kutta(model, data)
    else:
        mujoco.mj_step(model, data, nstep=frames)


def _runge_kutta(model: mujoco.MjModel, data: mujoco.MjData) -> None:
    """One step of fourth order as before 4.0: velocities are averaged first, and rotate the start by their mean."""
    h, time, position, velocity = model.opt.timestep, data.time, data.qpos.copy(), data.qvel.copy()

    def move(mean_velocity: Array, mean_acceleration: Array, share: float) -> None:
        data.qpos[:], data.qvel[:] = position, velocity + share * h * mean_acceleration
        mujoco.mj_integratePos(model, data.qpos, mean_velocity, share * h)
        data.time = time + share * h

    mujoco.mj_forward(model, data)
    velocities, accelerations = [velocity], [data.qacc.copy()]
    for share in (0.5, 0.5, 1.0):
        move(velocities[-1], accelerations[-1], share)
        mujoco.mj_forwardSkip(model, data, mujoco.mjtStage.mjSTAGE_NONE, 1)
        velocities.append(data.qvel.copy())
        accelerations.append(data.qacc.copy())
    weights = np.array([1, 2, 2, 1]) / 6
    move(weights @ velocities, weights @ accelerations, 1.0)
    data.qacc_warmstart[:] = accelerations[-1]


def _half_of_the_largest(margins: Array) -> Array:
    """Margins whose sums are the larger of any two, where at least one of the two is not 0."""
    values = set(margins[margins > 0].tolist())
    if len(values) > 1:
        raise ValueError(f"margins of geoms: found {sorted(values)}, expected one value besides 0")
    return np.full_like(margins, max(values, default=0.0) / 2)


def _make_inertias_explicit(root: Element) -> None:
    """Give every body the inertia that it has in a twin of the model whose capsules are cylinders."""
    total_mass = None
    for compiler in root.findall("compiler"):
        total_mass = compiler.attrib.pop("settotalmass", total_mass)
    twin = _compile(_with_cylinders(root))
    scale = 1.0 if total_mass is None else float(total_mass) / twin.body_mass.sum()
    for i, body in enumerate(_bodies(root)):
        if i == 0 or twin.body_mass[i] == 0:
            continue
        for written in body.findall("inertial"):
            body.remove(written)
        values = {
            "mass": _text([scale * twin.body_mass[i]]),
            "diaginertia": _text(scale * twin.body_inertia[i]),
            "pos": _text(twin.body_ipos[i]),
            "quat": _text(twin.body_iquat[i]),
        }
        body.insert(0, Element("inertial", values))
    for compiler in root.findall("compiler"):
        compiler.attrib.pop("inertiafromgeom", None)
    root.append(Element("compiler", inertiafromgeom="false"))


def _with_cylinders(root: Element) -> Element:
    model, twin = _compile(root), ElementTree.fromstring(ElementTree.tostring(root))
    geoms = [geom for body in _bodies(twin) for geom in body.findall("geom")]
    if len(geoms) != model.ngeom:
        raise ValueError(f"geoms in the XML: found {len(geoms)}, expected the {model.ngeom} of the compiled model")
    for geom, kind, size, place, turn in zip(
        geoms, model.geom_type, model.geom_size, model.geom_pos, model.geom_quat, strict=True
    ):
        if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
            for attribute in ("fromto", "axisangle", "euler", "xyaxes", "zaxis"):
                geom.attrib.pop(attribute, None)
            radius, half_length = size[:2]
            geom.attrib |= {"type": "cylinder", "size": _text([radius, half_length + radius / 2])}
            geom.attrib |= {"pos": _text(place), "quat": _text(turn)}
    return twin


def _bodies(root: Element) -> Iterator[Element]:
    """Elements in the order of MuJoCo's body ids: the world, then every body before its children."""
    world = Element("worldbody")
    for part in root.findall("worldbody"):
        world.extend(part)
    yield world
    yield from world.iter("body")


def _compile(root: Element) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(root, encoding="unicode"))


def _text(values: Iterable[float]) -> str:
    return " ".join(repr(float(value)) for value in values)  # every digit


def _read(path: Path) -> Element:
    """The file with its includes inserted and its folders absolute, so that the text compiles anywhere."""
    root, folder = ElementTree.parse(path).getroot(), path.resolve().parent
    _insert_includes(root, folder)
    for compiler in root.findall("compiler"):
        for name in {"meshdir", "texturedir"} & compiler.attrib.keys():
            compiler.set(name, str(folder / compiler.attrib[name]))
    root.insert(0, Element("compiler", meshdir=str(folder), texturedir=str(folder)))
    return root


def _insert_includes(parent: Element, folder: Path) -> None:
    while (include := parent.find("include")) is not None:
        i = list(parent).index(include)
        parent[i : i + 1] = ElementTree.parse(folder / include.attrib["file"]).getroot()
    for child in parent:
        _insert_includes(child, folder)
