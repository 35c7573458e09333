"""The GPU layer: the only package of llmgpu that imports wgpu or wgpudawn.

::

    wgsl/*.wgsl --compose--> source --compile--> Kernel --bind(buffers)--> BoundKernel
                                                                             |
    Device --record()--> Commands <--dispatch / dispatch_indirect / copy-----+
                             |
                             +--submit()--> submission --Device.wait()--> results in buffers
                                                                             |
                                                         NumPy <--download---+

A module imports only modules before it in this list: declarations, driver, wgpu_driver,
dawn_driver, adapters, kernel, commands, device. `llmgpu.backend` chooses the driver to load.

The modules up to adapters import no NumPy, so adapters are listed while another thread imports
NumPy. Kernel, commands and device import NumPy.
"""
