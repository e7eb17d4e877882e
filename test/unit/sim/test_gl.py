"""The choice of the off-screen OpenGL."""

import pytest

from vla_ros.sim import gl


@pytest.mark.parametrize("value", ["osmesa", "egl", "glfw"])
def test_the_users_choice_is_kept(monkeypatch, value):
    monkeypatch.setattr(gl, "_works", lambda backend: pytest.fail("nothing is to be tried"))
    assert gl.choose_renderer({"MUJOCO_GL": value}) == value


@pytest.mark.parametrize(
    ("egl_loads", "egl_works", "osmesa_loads", "chosen"),
    [(True, True, True, "egl"), (True, False, True, "osmesa"), (False, True, True, "osmesa")],
)
def test_egl_where_it_works_else_osmesa(monkeypatch, egl_loads, egl_works, osmesa_loads, chosen):
    loads = {gl._EGL: egl_loads, gl._OSMESA: osmesa_loads}
    monkeypatch.setattr(gl, "_loads", loads.__getitem__)
    monkeypatch.setattr(gl, "_works", lambda backend: egl_works)
    environ: dict[str, str] = {}
    assert gl.choose_renderer(environ) == chosen
    assert environ == {"MUJOCO_GL": chosen}  # for every process started from here on


def test_without_any_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(gl, "_loads", lambda names: False)
    with pytest.raises(gl.NoRenderer) as error:
        gl.choose_renderer({})
    assert "libosmesa6" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_backend_that_does_not_work_is_one_clear_error(monkeypatch):
    from vla_ros.sim import rendering as render
    from vla_ros.sim.factory import EnvConfig

    monkeypatch.setattr(render, "choose_renderer", lambda: "broken")
    with pytest.raises(gl.NoRenderer, match=r"MUJOCO_GL=broken: .*libosmesa6") as error:
        EnvConfig(image_size=16)()
    assert "\n" not in str(error.value)


def test_a_value_that_is_none_is_named():
    with pytest.raises(gl.NoRenderer, match="MUJOCO_GL is 'vulkan': unset it, or set one of egl"):
        gl.choose_renderer({"MUJOCO_GL": "vulkan"})


def test_a_probe_of_something_absent_fails_quietly():
    assert not gl._works("nonsense")
    assert not gl._loads(("libnothing.so.99",))
