"""Several threads change nothing but the time."""

import threading
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

import enkbayes as eb
from enkbayes.engine import threads


@pytest.fixture
def two(monkeypatch):
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)


def test_results_come_in_order_from_several_threads(two):
    seen = set()
    together = threading.Barrier(2, timeout=20)

    def work(x):
        if x < 2:
            together.wait()  # passes only when two threads are at work
        seen.add(threading.current_thread().name)
        return x

    assert list(threads.in_threads(work, range(9))) == list(range(9))
    assert len(seen) == 2


def test_an_error_in_a_thread_is_the_callers(two):
    with pytest.raises(ZeroDivisionError):
        list(threads.in_threads(lambda x: 1 / x, [1, 0, 2]))
    assert list(threads.in_threads(str, [1, 2])) == ["1", "2"]  # and the threads are still there


def test_an_error_ends_the_work_of_all_threads(two):
    done = []

    def work(x):
        if x == 0:
            raise ZeroDivisionError
        done.append(x)

    with pytest.raises(ZeroDivisionError):
        list(threads.in_threads(work, range(1_000)))
    assert len(done) < 2 * threads.AHEAD  # no more than one round


def test_a_product_by_blocks_is_the_product(two):
    rng = np.random.default_rng(0)
    for rows in (1, 127, 300, 1_100):
        a, b = rng.standard_normal((rows, 150)), rng.standard_normal((150, 100))
        assert threads.product(a, b) == pytest.approx(a @ b, abs=1e-12)
    assert threads.product(a.astype("f4"), b).dtype == np.float64


def test_a_product_does_not_depend_on_the_number_of_threads(two, monkeypatch):
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((600, 300)), rng.standard_normal((300, 300))
    with threadpool_limits(1, user_api="blas"):
        several = threads.product(a, b)
        monkeypatch.setattr(threads, "blas_threads", lambda: 1)
        assert np.array_equal(threads.product(a, b), several)


def test_blas_has_one_thread_inside_and_its_own_number_again_after(two):
    def blas(_=None):
        return [lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"]

    with threadpool_limits(2, user_api="blas"):
        before = blas()
        assert set(chain.from_iterable(threads.in_threads(blas, range(4)))) == {1}
        assert blas() == before


def test_within_a_limit_of_one_there_are_no_threads():
    with threadpool_limits(1, user_api="blas"):
        assert set(threads.in_threads(lambda _: threading.current_thread(), range(4))) == {threading.current_thread()}


def test_floating_point_errors_are_as_silent_as_in_the_caller(two):
    with np.errstate(over="ignore"):
        assert np.isinf(list(threads.in_threads(lambda x: np.float64(1e308) * x, [10.0, 20.0]))).all()


def test_a_run_is_bitwise_the_same(two):
    rng = np.random.default_rng(0)
    features = rng.standard_normal((1_000, 5))
    problem = eb.Problem.create(features, features[:, 0] + rng.logistic(size=1_000) > 0, chunk=130)
    with threadpool_limits(1, user_api="blas"):
        alone = eb.run(problem, particles=40).theta
        threaded = replace(problem, rows=replace(problem.rows, threaded=0.0))
        assert np.array_equal(eb.run(threaded, particles=40).theta, alone)


def test_a_step_on_few_parameters_leaves_blas_one_thread_and_chunks_the_others():
    def blas(_=None):
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        if blas() != {2}:
            pytest.skip("BLAS has one thread here")
        with threads.threads_for_chunks(10), threads.threads_for_chunks(10):
            assert blas() == {1}
            together = threading.Barrier(2, timeout=20)  # passes only when two threads are at work
            found = set(threads.in_threads(lambda _: (together.wait(), threading.current_thread())[1], range(2)))
            assert threading.current_thread() in found
            assert [x.name.startswith("enkbayes") for x in found - {threading.current_thread()}] == [True]
            inner = threads.in_threads(lambda _: list(threads.in_threads(lambda x: x, [1, 2])), range(4))
            assert list(inner) == [[1, 2]] * 4  # a thread of ours starts no others
        assert blas() == {2}
        with threads.threads_for_chunks(threads.NARROW + 1):
            assert blas() == {2}


def test_fits_at_once_leave_blas_as_it_was():
    """Each of eight threads sets and lifts the limit at its own pace; the last one restores it."""

    def blas():
        return {lib["num_threads"] for lib in threadpool_info() if lib["user_api"] == "blas"}

    rng = np.random.default_rng(0)
    features = rng.standard_normal((400, 4))
    problem = eb.Problem.create(features, features[:, 0] + rng.logistic(size=400) > 0, chunk=100)
    with threadpool_limits(2, user_api="blas"):
        if blas() != {2}:
            pytest.skip("BLAS has one thread here")
        alone = eb.run(problem, particles=20).theta
        first_is_in, last_is_in = threading.Barrier(8, timeout=60), threading.Barrier(8, timeout=60)
        found, inside = [], []

        def fit(number):
            with threads.threads_for_chunks(10):
                first_is_in.wait()  # all eight have asked for the limit
                inside.append(blas())
                found.append(eb.run(problem, particles=20).theta)
                if number % 2:
                    last_is_in.wait()
            if not number % 2:  # half of them have left before the other half
                last_is_in.wait()

        workers = [threading.Thread(target=fit, args=(number,)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert inside == [{1}] * 8
        assert len(found) == 8
        assert all(np.array_equal(theta, alone) for theta in found)
        assert blas() == {2}
