from tests.support.torch_threads import one_torch_thread

__all__ = ["one_torch_thread"]
