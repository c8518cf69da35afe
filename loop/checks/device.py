"""The device, its driver, and a torch that fits them."""

from collections.abc import Iterator
from typing import ClassVar

from loop.checks import Check, Finding, Setup, Stage


class Device(Check):
    """What `shipped.json` and the fingerprint will call this machine."""

    stage: ClassVar[Stage] = "machine"

    def find(self, setup: Setup) -> Iterator[Finding]:
        """The GPU with driver and CUDA, or the processor."""
        host = setup.host
        if not host.gpus:
            yield self.ok(f"{host.device}: {host.cpu}, {host.num_cpus} CPUs, no GPU")
            return
        with setup.open_gpus() as gpus:
            answering, driver_cuda = gpus.answering, gpus.cuda_version()
        torch_cuda = setup.installation.torch_cuda
        shown = f"{driver_cuda[0]}.{driver_cuda[1]}" if driver_cuda else "?"
        text = f"{len(host.gpus)} x {host.device}, driver {host.driver}, CUDA {shown}, torch for {torch_cuda or 'none'}"
        if driver_cuda and torch_cuda and int(torch_cuda.partition(".")[0]) > driver_cuda[0]:
            yield self.unfit(text, f"update the driver, or install a torch for CUDA {driver_cuda[0]}")
        elif not answering:
            yield self.warn(
                f"{text}; pynvml cannot ask the driver: clocks and throttling will not be recorded",
                "pip install nvidia-ml-py for the Python that runs loop",
            )
        else:
            yield self.ok(text)
