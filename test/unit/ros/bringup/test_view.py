"""What a graph reads in the view node's log."""

from vla_ros.ros.bringup.graph_file import PageVisitors

HEAD = "[INFO] [1795348578.821961283] [view]: "


def test_an_address_is_news_once():
    visitors = PageVisitors()
    assert visitors.news() == ""
    visitors.hear(f"{HEAD}the view is at http://localhost:8080/")
    assert visitors.news() == visitors.address == "http://localhost:8080/"
    assert visitors.news() == ""


def test_it_is_watched_from_the_first_browser_to_the_last():
    visitors = PageVisitors()
    visitors.hear(f"{HEAD}something else")
    assert not visitors.watched
    visitors.hear(f"{HEAD}the page was opened")
    assert visitors.watched
    visitors.hear(f"{HEAD}nobody looks at the page any more")
    assert not visitors.watched
