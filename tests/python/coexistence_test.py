# SPDX-License-Identifier: BSD-3-Clause
"""One process, two kinds of checkpointing: an extension that uses Refrain, and torch.utils.checkpoint."""

import threading
import unittest

import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

import refrain_extension as extension

torch.set_num_threads(1)


def python_body(x, w):
    return (x.mm(w).tanh() * 2).cos()


def python_quiet(x, w, **options):
    return checkpoint(python_body, x, w, **{"use_reentrant": False, **options})


class Step:
    """Loss and gradients of one step from fixed values."""

    def __init__(self, net):
        torch.manual_seed(5)
        x = torch.randn(8, 16, requires_grad=True)
        w = torch.randn(16, 16).mul_(0.1).requires_grad_()
        extension.runs()
        loss = net(x, w).sum()
        loss.backward()
        self.runs = extension.runs()
        self.values = [loss.detach(), x.grad, w.grad]


class Coexistence(unittest.TestCase):
    def assert_equal(self, one, two):
        for a, b in zip(one.values, two.values, strict=True):
            self.assertTrue(torch.equal(a, b))

    def test_refrain_gives_the_plain_gradients(self):
        plain, quiet = Step(extension.plain), Step(extension.quiet)
        self.assert_equal(plain, quiet)
        self.assertEqual((plain.runs, quiet.runs), (1, 2))

    def test_pythons_checkpoint_works_before_and_after_refrain(self):
        for reentrant in (False, True):
            with self.subTest(use_reentrant=reentrant):
                quiet = lambda x, w: python_quiet(x, w, use_reentrant=reentrant)
                before = Step(quiet)
                Step(extension.quiet)
                self.assert_equal(before, Step(quiet))
                self.assert_equal(before, Step(python_body))

    def test_the_two_take_turns_in_one_graph(self):
        self.assert_equal(
            Step(lambda x, w: extension.plain(python_body(extension.plain(x, w), w), w)),
            Step(lambda x, w: extension.quiet(python_quiet(extension.quiet(x, w), w), w)),
        )

    def test_refrain_inside_pythons_checkpoint(self):
        inside = lambda call: lambda x, w: call(x.sin(), w).mm(w)
        self.assert_equal(
            Step(inside(extension.plain)),
            Step(lambda x, w: checkpoint(inside(extension.quiet), x, w, use_reentrant=False)),
        )

    def test_pythons_checkpoint_inside_refrain(self):
        self.assert_equal(
            Step(lambda x, w: python_body(x, w).mm(w)),
            Step(lambda x, w: extension.quiet_call(lambda y: python_quiet(y, w).mm(w), x)),
        )

    def test_pythons_saved_tensor_hooks_see_what_is_outside(self):
        packed = []

        def pack(tensor):
            packed.append(tensor.shape)
            return tensor

        def net(call):
            def run(x, w):
                with saved_tensors_hooks(pack, lambda tensor: tensor):
                    return call(x.sin(), w).cos()

            return run

        plain = Step(net(extension.plain))
        plain_count = len(packed)
        packed.clear()
        self.assert_equal(plain, Step(net(extension.quiet)))
        self.assertGreaterEqual(len(packed), 2)  # sin's and cos's
        self.assertLess(len(packed), plain_count)

    def test_save_on_cpu_around_a_region(self):
        def net(x, w):
            with save_on_cpu():
                return extension.quiet(x.sin(), w).cos()

        self.assert_equal(Step(lambda x, w: extension.plain(x.sin(), w).cos()), Step(net))

    def test_backward_from_a_thread_of_pythons(self):
        steps = []
        work = lambda: steps.append(Step(extension.quiet))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        self.assert_equal(Step(extension.plain), steps[0])

    def test_an_error_in_a_replay_reaches_python(self):
        calls = []

        def second_time_fails(x):
            calls.append(1)
            if len(calls) == 2:
                raise ValueError("not twice")
            return x.sin()

        x = torch.ones(3, requires_grad=True)
        y = extension.quiet_call(second_time_fails, x)
        with self.assertRaisesRegex(Exception, "not twice"):
            y.sum().backward()
        self.assert_equal(Step(extension.plain), Step(extension.quiet))


if __name__ == "__main__":
    unittest.main(verbosity=2)
