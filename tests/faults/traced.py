"""Workloads that fail with tensors alive, made by lines that a trace has to find."""

MIB = 2**20


def make(mib):
    import torch

    return torch.ones(mib * MIB // 4)


def deeper(levels, mib):
    return make(mib) if levels == 0 else deeper(levels - 1, mib)


def raises(*, phase, **_):
    with phase("build"):
        large = make(64)
        small = deeper(20, 16)
    with phase("step", 3):
        gone = make(48)
        del gone
        middle = make(32).reshape(2, -1).to(dtype=None)
        raise ValueError(f"a bug with {large.numel() + small.numel() + middle.numel()} numbers")


def is_refused(*, phase, wrapped=False, **_):
    """Passes tensors that no frame holds once the exception arrives: they are alive only where it is raised."""
    import torch

    with phase("step"):
        try:
            torch.cat([make(40), make(20), make(100_000)])
        except RuntimeError as error:
            if wrapped:
                raise LookupError("in words of its own") from error
            raise


def recovers_and_fails(*, phase, **_):
    """Catches a refusal, and ends by another error."""
    import torch

    try:
        with phase("first"):
            torch.cat([make(40), make(100_000)])
    except RuntimeError:
        pass
    with phase("second"):
        kept = make(8)
        raise ValueError(f"a bug with {kept.numel()} numbers")


def fails_between(*, phase, **_):
    with phase("work"):
        kept = make(8)
    raise ValueError(f"a bug with {kept.numel()} numbers")


def trains(*, phase, **_):
    import torch

    with phase("backward"):
        layer = torch.nn.Linear(1024, 1024)
        layer(torch.ones(4, 1024)).sum().backward()
        raise ValueError(layer)


def holds_many(*, phase, **_):
    import torch

    with phase("work"):
        kept = [torch.ones(16 * (1 + each)) for each in range(80)]
        raise ValueError(len(kept))


def recovers(*, phase, **_):
    import torch

    with phase("work"):
        try:
            torch.cat([make(100_000)])
        except RuntimeError:
            return {"recovered": True}
