/* device.cu - The GPU as a device: opening it, its memory, and the one stream of work. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "common.cuh"

enum { COPY_THREADS = 256, KERNEL_COPY_BYTES = 128 << 10 };

extern "C" const char *const backend_name = "cuda";
cudaStream_t cuda_stream;
volatile int cuda_aborted;
static cudaStream_t own_stream;
static cudaDeviceProp properties;
static int driver_version;              /* latest CUDA that the driver supports: 13000 is 13.0 */

int    cuda_arch(void)       { return properties.major * 10 + properties.minor; }
int    cuda_sm_count(void)   { return properties.multiProcessorCount; }
size_t cuda_smem_bytes(void) { return properties.sharedMemPerBlockOptin; }

/* Its attributes can be read only where this program contains code for the GPU. */
static __global__ void any_kernel() { }

/* Fails on an error of the first calls that need the GPU's memory. */
static void check_opened(cudaError_t error) {
    REQUIRE(error == cudaSuccess, "%s cannot be opened: %s; `nvidia-smi` shows its compute mode, and the processes "
            "that hold it or its memory", properties.name, cudaGetErrorString(error));
}

void device_start(char **) { }

int device_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void device_open(DeviceOptions options) {
    if (own_stream) return;
    int count = 0;
    if (cudaDriverGetVersion(&driver_version) != cudaSuccess) driver_version = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    REQUIRE(driver_version, "no NVIDIA driver on this machine; `make DEVICE=cpu` builds a program that needs none");
    REQUIRE(error != cudaErrorInsufficientDriver, "the NVIDIA driver is for CUDA %d.%d, this program wants %d.%d: "
            "take a newer driver, or build with an older toolkit", driver_version / 1000, driver_version % 1000 / 10,
            CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    REQUIRE(error != cudaErrorNoDevice && (error != cudaSuccess || count), "no NVIDIA GPU is visible: `nvidia-smi -L` "
            "lists them, CUDA_VISIBLE_DEVICES may hide them, and `make DEVICE=cpu` builds a program that needs none");
    CUDA(error);
    REQUIRE(options.index < count || count == 1, "rank %d of this machine wants a GPU of its own, %d are visible: "
            "start at most %d ranks here, or show each of them one GPU", options.index, count, count);
    const int device = count == 1 ? 0 : options.index;
    CUDA(cudaGetDeviceProperties(&properties, device));
    REQUIRE(properties.major >= 8, "%s has compute capability %d.%d, want 8.0 (Ampere) or newer", properties.name,
            properties.major, properties.minor);
    check_opened(cudaSetDevice(device));
    check_opened(cudaFree(NULL));        /* makes the context where cudaSetDevice has not */
    cudaFuncAttributes attributes;
    REQUIRE(cudaFuncGetAttributes(&attributes, any_kernel) == cudaSuccess, "this program contains no code for %s, of "
            "compute capability %d.%d: build it again on this machine", properties.name, properties.major,
            properties.minor);
    CUDA(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
    if (!cuda_stream) cuda_stream = own_stream;
}

/* Work on the old stream completes before the new one starts: both use the same scratch. */
extern "C" void device_use_stream(void *stream) {
    if (cuda_stream) device_wait();
    cuda_stream = stream ? (cudaStream_t)stream : own_stream;
}

/* Dense peaks of the vendor's data sheets, bf16 with f32 accumulation, by the name that the driver reports. Slices of a
   GPU (MIG) have none. */
static const struct { const char *name; double bf16, f32; } peaks[] = {
    { "NVIDIA B200",                     2250e12,   75e12 },
    { "NVIDIA H200",                    989.4e12, 66.9e12 },
    { "NVIDIA GH200 *",                 989.4e12, 66.9e12 },
    { "NVIDIA H200 NVL",                835.5e12,   60e12 },
    { "NVIDIA H100 80GB HBM3",          989.4e12, 66.9e12 },
    { "NVIDIA H100 NVL",                835.5e12,   60e12 },
    { "NVIDIA H100 PCIe",                 756e12, 51.2e12 },
    { "NVIDIA A100*",                     312e12, 19.5e12 },
    { "NVIDIA A30",                       165e12, 10.3e12 },
    { "NVIDIA A40",                     149.7e12, 37.4e12 },
    { "NVIDIA A10",                       125e12, 31.2e12 },
    { "NVIDIA L40S",                      362e12, 91.6e12 },
    { "NVIDIA L40",                       181e12, 90.5e12 },
    { "NVIDIA L4",                        121e12, 30.3e12 },
    { "NVIDIA RTX A6000",               154.8e12, 38.7e12 },
    { "NVIDIA GeForce RTX 3090",           71e12, 35.6e12 },
    { "NVIDIA GeForce RTX 3090 Ti",        80e12,   40e12 },
    { "NVIDIA GeForce RTX 4080",         97.5e12, 48.7e12 },
    { "NVIDIA GeForce RTX 4090",        165.2e12, 82.6e12 },
    { "NVIDIA GeForce RTX 5080",        112.6e12, 56.3e12 },
    { "NVIDIA GeForce RTX 5090",        209.5e12, 104.8e12 },
};

DeviceInfo device_info(void) {
    DeviceInfo info = {};
    snprintf(info.name, sizeof info.name, "%.*s", (int)sizeof info.name - 1, properties.name);
    snprintf(info.detail, sizeof info.detail, "driver %d.%d, %d SMs, compute capability %d.%d", driver_version / 1000,
             driver_version % 1000 / 10, properties.multiProcessorCount, properties.major, properties.minor);
    for (const auto &peak : peaks)
        if (fnmatch(peak.name, info.name, 0) == 0 && !strstr(info.name, " MIG ")) {
            info.peak_flops[BF16] = peak.bf16;
            info.peak_flops[F32] = peak.f32;
        }
    snprintf(info.pci_bus_id, sizeof info.pci_bus_id, "%04x:%02x:%02x.0", properties.pciDomainID, properties.pciBusID,
             properties.pciDeviceID);
    CUDA(cudaMemGetInfo((size_t *)&info.free_bytes, (size_t *)&info.total_bytes));
    return info;
}

const char *device_refuse_dtype(DType dtype) {
    if (dtype == E4M3) return cuda_arch() >= 89 ? NULL : "needs a GPU of compute capability 8.9 or newer";
    return dtype == F32 || dtype == BF16 ? NULL : "the GPU computes in f32, bf16 and e4m3 only";
}

/* The limit is that of a row in the registers of a block (layernorm.cu). */
const char *device_refuse_channels(int64_t channels) {
    return channels % 8 || channels > 16384 ? "want a multiple of 8 on a GPU, at most 16384" : NULL;
}

void *device_alloc(size_t bytes, const char *what) {
    void *memory;
    const cudaError_t error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaErrorMemoryAllocation) {
        size_t free_bytes = 0, total_bytes = 0;
        cudaGetLastError();                 /* reported here: clear it for the next launch */
        cudaMemGetInfo(&free_bytes, &total_bytes);
        fail("out of memory: %s: %.2f GiB wanted, %.2f of the GPU's %.2f GiB are free; a smaller --batch, --context or "
             "--model, or --attention flash, needs less", what, (double)bytes / (1 << 30),
             (double)free_bytes / (1 << 30), (double)total_bytes / (1 << 30));
    }
    REQUIRE(error == cudaSuccess, "cuda: no memory for %s: %s", what, cudaGetErrorString(error));
    device_zero(memory, bytes);
    return memory;
}

void device_free(void *memory) { CUDA(cudaFree(memory)); }

/* An error costs speed only; it is cleared so that the next launch does not report it. */
void device_pin(void *host, size_t bytes) {
    if (cudaHostRegister(host, bytes, cudaHostRegisterDefault)) cudaGetLastError();
}
void device_unpin(void *host)             { if (cudaHostUnregister(host)) cudaGetLastError(); }

/* The host may reuse its buffer at once: pageable memory has been staged when cudaMemcpyAsync returns; pinned memory is
   waited for. */
void device_upload(void *device, const void *host, size_t bytes) {
    cudaPointerAttributes attributes;
    CUDA(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, cuda_stream));
    CUDA(cudaPointerGetAttributes(&attributes, host));
    if (attributes.type != cudaMemoryTypeUnregistered) device_wait();
}

void device_download(void *host, const void *device, size_t bytes) {
    CUDA(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, cuda_stream));
    device_wait();
}

void *device_host_alloc(size_t bytes, const char *what) {
    void *memory;
    const cudaError_t error = cudaMallocHost(&memory, bytes);
    REQUIRE(error == cudaSuccess, "out of memory: %s, %zu bytes that the GPU can access: %s", what, bytes,
            cudaGetErrorString(error));
    return memset(memory, 0, bytes);
}

void device_host_free(void *memory) { CUDA(cudaFreeHost(memory)); }

static __global__ void __launch_bounds__(COPY_THREADS) copy_kernel(uint32_t *to, const uint32_t *from, int count) {
    const int i = (int)blockIdx.x * COPY_THREADS + (int)threadIdx.x;
    wait_for_previous();
    if (i < count) to[i] = from[i];
}

/* Small ones by a kernel, which reads and writes page-locked memory: a copy engine begins 5 to 8 us after the kernel in
   front, and the kernel behind it as late again; a step has four such copies. */
static void copy_async(void *to, const void *from, size_t bytes, const void *host) {
    cudaPointerAttributes attributes;
    CUDA(cudaPointerGetAttributes(&attributes, host));
    const bool are_words = ((uintptr_t)to | (uintptr_t)from | bytes) % sizeof(uint32_t) == 0;
    if (attributes.type == cudaMemoryTypeHost && are_words && bytes && bytes <= KERNEL_COPY_BYTES) {
        const int count = (int)(bytes / sizeof(uint32_t));
        LAUNCH_EARLY(copy_kernel, (unsigned)ceil_div(count, COPY_THREADS), COPY_THREADS, 0, (uint32_t *)to,
                     (const uint32_t *)from, count);
    } else CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda_stream));
}

void device_upload_async(void *device, const void *host, size_t bytes)   { copy_async(device, host, bytes, host); }
void device_download_async(void *host, const void *device, size_t bytes) { copy_async(host, device, bytes, host); }

void device_zero(void *device, size_t bytes) { CUDA(cudaMemsetAsync(device, 0, bytes, cuda_stream)); }

void device_copy(void *to, const void *from, size_t bytes) {
    CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, cuda_stream));
}

void device_wait(void) {
    CUDA(cudaStreamSynchronize(cuda_stream));
    while (cuda_aborted) pause();
}
