from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from demo_project.photos import fibonacci
from demo_project.photos.actors import Fibonacci, FibonacciState
from jobqueue import Done, GiveUp, Kind, Sleep, Suspend, cancel
from jobqueue.models import Task
from jobqueue.testing import context, message, poll_once, run_until_idle

pytestmark = pytest.mark.slow

FIRST = [1, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]


def grown(n: int) -> Task:
    root = fibonacci.start(n, "quick")
    run_until_idle()
    return Task.objects.get(pk=root)


def test_results_of_children_are_added_up():
    state = FibonacciState(pending=2)

    first = Fibonacci().poll(context(Fibonacci, state=state, inbox=[message(3, kind=Kind.CHILD_SUCCESSFUL)]), 5)
    second = Fibonacci().poll(context(Fibonacci, state=state, inbox=[message(2, kind=Kind.CHILD_SUCCESSFUL)]), 5)

    assert (first, second) == (Suspend(), Done(5))


@pytest.mark.parametrize("kind", [Kind.CHILD_FAILED, Kind.CHILD_CANCELLED])
def test_failed_child_ends_its_parent(kind):
    poll = context(Fibonacci, state=FibonacciState(pending=2), inbox=[message({}, kind=kind)])

    with pytest.raises(GiveUp, match="one ended otherwise"):
        Fibonacci().poll(poll, 5)


def test_slow_actor_sleeps_before_first_step():
    assert Fibonacci().poll(context(Fibonacci), 5, 0.5) == Sleep(timedelta(seconds=0.5))
    assert Fibonacci().poll(context(Fibonacci, polls=1), 2, 0.5) == Done(1)


@pytest.mark.django_db
class TestTree:
    def test_full_tree_has_every_task_and_the_result(self):
        tree = fibonacci.tree(grown(7))

        assert tree.root.return_value == 13
        assert len(tree.nodes) == tree.expected == 25
        assert dict(tree.counts)["done"] == 25
        assert not tree.is_busy

    def test_tree_is_drawn_while_it_grows(self):
        root = fibonacci.start(4, "quick")
        assert [node.state for node in fibonacci.tree(Task.objects.get(pk=root)).nodes] == ["ready"]

        poll_once(root)

        tree = fibonacci.tree(Task.objects.get(pk=root))
        assert [(node.n, node.state, node.words) for node in tree.nodes] == [
            (4, "suspended", "waits for its children"),
            (3, "ready", "ready"),
            (2, "ready", "ready"),
        ]
        assert tree.is_busy

    def test_node_positions_stay_while_tree_grows(self):
        root = fibonacci.start(6, "quick")
        poll_once(root)
        early = {node.task_id: (node.x, node.y) for node in fibonacci.tree(Task.objects.get(pk=root)).nodes}
        run_until_idle()

        late = {node.task_id: (node.x, node.y) for node in fibonacci.tree(Task.objects.get(pk=root)).nodes}

        assert early.items() <= late.items()

    @pytest.mark.parametrize("n", [1, 2, 3, 7])
    def test_nodes_lie_inside_the_drawing_and_apart(self, n):
        tree = fibonacci.tree(grown(n))

        for node in tree.nodes:
            assert node.radius <= node.x <= tree.width - node.radius
            assert node.radius <= node.y <= tree.height - node.radius
        for left, right in pairwise(sorted(tree.nodes, key=lambda node: (node.y, node.x))):
            assert left.y != right.y or left.x + left.radius < right.x - right.radius

    def test_tree_needs_one_query_per_generation(self):
        root = grown(6)

        with CaptureQueriesContext(connection) as captured:
            fibonacci.tree(root)

        assert len(captured) == 5


@pytest.mark.django_db
class TestPage:
    def test_form_starts_a_tree_and_leads_to_it(self, client):
        answer = client.post(reverse("photos:fibonacci"), {"n": 4, "pace": "quick"}, follow=True)

        root = Task.objects.get()
        assert (root.args, root.parent_id) == ([4, 0.0], None)
        assert answer.redirect_chain == [(reverse("photos:fibonacci-tree", args=[root.pk]), 302)]

    @pytest.mark.parametrize(
        "form", [{}, {"n": 13, "pace": "quick"}, {"n": 5, "pace": "warp"}, {"n": "x", "pace": "slow"}]
    )
    def test_form_refuses_invalid_values(self, client, form):
        assert client.post(reverse("photos:fibonacci"), form).status_code == 422
        assert not Task.objects.exists()

    def test_page_shows_the_result_and_links_every_task_to_the_admin(self, client):
        root = grown(5)

        html = client.get(reverse("photos:fibonacci-tree", args=[root.pk])).content.decode()

        assert "fib(5) = 5</h1>" in html
        assert "9 of 9 tasks" in html
        assert "data-busy" not in html
        for task in Task.objects.all():
            assert reverse("admin:jobqueue_task_change", args=[task.pk]) in html

    def test_live_answer_has_only_changed_parts(self, client):
        root = fibonacci.start(5, "quick")

        html = client.get(reverse("photos:fibonacci-tree", args=[root]) + "?live").content.decode()

        assert 'id="tree" data-piece' in html
        assert 'data-busy="400"' in html
        assert "<html" not in html

    def test_page_of_cancelled_tree_shows_it(self, client):
        root = fibonacci.start(5, "quick")
        poll_once(root)
        cancel(root, tree=True, backend="default")

        html = client.get(reverse("photos:fibonacci-tree", args=[root])).content.decode()

        assert "It was cancelled." in html
        assert "3 failed" in html
        assert "data-busy" not in html

    def test_only_roots_have_a_page(self, client):
        root = grown(3)
        child = Task.objects.filter(parent=root)[0]

        for task_id in (child.pk, uuid4()):
            assert client.get(reverse("photos:fibonacci-tree", args=[task_id])).status_code == 404
