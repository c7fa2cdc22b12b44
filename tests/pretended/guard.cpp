// What torch asks of a CUDA device before it keeps tensors that say they lie on one. Nothing is computed here.
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

struct Hooks : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return false; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex current_device() const override { return 0; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  int getNumGPUs() const override { return 1; }
  void deviceSynchronize(c10::DeviceIndex) const override {}
};

struct Guard : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  Guard() = default;
  explicit Guard(c10::DeviceType) {}
  static constexpr c10::DeviceType static_type = c10::DeviceType::CUDA;
  static c10::Stream only() { return c10::Stream(c10::Stream::DEFAULT, c10::Device(static_type, 0)); }
  c10::Device exchangeDevice(c10::Device) const override { return c10::Device(static_type, 0); }
  c10::Device getDevice() const override { return c10::Device(static_type, 0); }
  c10::Stream getStream(c10::Device) const noexcept override { return only(); }
  c10::Stream getDefaultStream(c10::Device) const override { return only(); }
  c10::Stream getNewStream(c10::Device, int = 0) const override { return only(); }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return only(); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};

namespace at { C10_REGISTER_CLASS(CUDAHooksRegistry, CUDAHooks, ::Hooks) }
C10_REGISTER_GUARD_IMPL(CUDA, Guard)
