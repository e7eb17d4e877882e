"""Who may see the page, and who may not."""

from http import HTTPStatus

import pytest

from vla_ros.viz.viewer.guard import ALIVE, COOKIE, PageGuard, is_loopback

HERE = PageGuard()
ELSEWHERE = PageGuard("secret")


@pytest.mark.parametrize("host", ["localhost:8080", "127.0.0.1:8080", "[::1]:8080", "localhost"])
def test_this_machine_needs_no_token(host):
    assert HERE.judge("/", {"host": host}) is None
    assert HERE.judge("/", {"host": host, "origin": f"http://{host}"}) is None


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8080", "origin": "https://evil.example"},  # its page opens a socket
        {"host": "localhost:8080", "origin": "http://localhost:3000"},
        {"host": "localhost:8080", "origin": "null"},
        {"host": "evil.example:8080"},  # DNS rebinding
        {"host": "evil.example:8080", "origin": "http://evil.example:8080"},
        {},
    ],
)
def test_a_strangers_page_does_not_reach_it(headers):
    answer = HERE.judge("/", headers)
    assert answer is not None and answer.status == HTTPStatus.FORBIDDEN


def test_elsewhere_the_token_opens_it_and_leaves_the_address():
    host = {"host": "robot:8080"}
    asked = ELSEWHERE.judge("/", host)
    assert asked is not None and asked.status == HTTPStatus.UNAUTHORIZED and "token" in asked.body
    assert "secret" not in asked.body
    wrong = ELSEWHERE.judge("/?token=guess", host)
    assert wrong is not None and wrong.status == HTTPStatus.UNAUTHORIZED
    opened = ELSEWHERE.judge("/?token=secret", host)
    assert opened is not None and opened.status == HTTPStatus.SEE_OTHER
    assert opened.headers["Location"] == "/"
    cookie = opened.headers["Set-Cookie"].split(";")[0]
    assert ELSEWHERE.judge("/", {**host, "cookie": cookie}) is None
    alive = ELSEWHERE.judge(ALIVE, {**host, "cookie": cookie})
    assert alive is not None and alive.status == HTTPStatus.OK
    refused = ELSEWHERE.judge(ALIVE, host)
    assert refused is not None and refused.status == HTTPStatus.UNAUTHORIZED
    assert ELSEWHERE.judge("/", {**host, "cookie": f"{COOKIE}=guess"}) is not None


def test_a_cookie_does_not_help_a_strangers_page():
    headers = {"host": "robot:8080", "origin": "http://evil", "cookie": f"{COOKIE}=secret"}
    answer = ELSEWHERE.judge("/", headers)
    assert answer is not None and answer.status == HTTPStatus.FORBIDDEN


@pytest.mark.parametrize(
    ("host", "here"),
    [("localhost", True), ("127.0.0.1", True), ("::1", True), ("0.0.0.0", False), ("robot", False)],
)
def test_loopback(host, here):
    assert is_loopback(host) is here
