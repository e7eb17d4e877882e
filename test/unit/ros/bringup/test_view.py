"""What a graph reads in the view node's log."""

from vla_ros.ros.bringup.view import PageVisitors

HEAD = "[INFO] [1795348578.821961283] [view]: "


def test_an_address_is_news_once():
    visitors = PageVisitors()
    assert visitors.new_address() == ""
    visitors.read(f"{HEAD}the view is at http://localhost:8080/")
    assert visitors.new_address() == visitors.address == "http://localhost:8080/"
    assert visitors.new_address() == ""


def test_it_is_watched_from_the_first_browser_to_the_last():
    visitors = PageVisitors()
    visitors.read(f"{HEAD}something else")
    assert not visitors.watched
    visitors.read(f"{HEAD}the page was opened")
    assert visitors.watched
    visitors.read(f"{HEAD}nobody looks at the page any more")
    assert not visitors.watched
