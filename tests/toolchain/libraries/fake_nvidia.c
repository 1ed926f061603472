/* The functions of libcuda.so.1 and libnvidia-ml.so.1 that trtbuild calls to list GPUs and to read their free memory.
   GPU n has SM 90, the PCI address 0000:0n:00.0 and n+1 GiB of free memory. There are three GPUs.
   CUDA numbers the GPUs by CUDA_VISIBLE_DEVICES (numbers only). NVML does not. If NVML_FAILS is set, NVML cannot be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int visible[3], count;

int cuInit(unsigned flags) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    (void)flags;
    for (count = 0; count < 3; count++) {
        if (list == NULL) { visible[count] = count; continue; }
        if (*list < '0' || *list > '2') break;
        visible[count] = *list - '0';
        list += list[1] == ',' ? 2 : 1;
    }
    return 0;
}
int cuDeviceGetCount(int *result) { *result = count; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = visible[ordinal]; return ordinal >= count; }
int cuDeviceGetAttribute(int *result, int attribute, int device) {
    (void)device;
    *result = attribute == 75 ? 9 : 0;  /* 75 is the major number of the compute capability, 9.0 */
    return 0;
}
int cuDeviceGetPCIBusId(char *text, int size, int device) {
    return snprintf(text, (size_t)size, "0000:0%d:00.0", device) >= size;
}

typedef struct { unsigned long long total, free, used; } Memory;
int nvmlInit_v2(void) { return getenv("NVML_FAILS") != NULL; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, void **device) {
    if (strlen(address) != 12) return 1;
    /* GPU n has the handle n+1, because NULL is not a handle. */
    *device = (void *)(long)(address[6] - '0' + 1);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = 80ULL << 30;
    memory->free = (unsigned long long)(long)device << 30;
    memory->used = memory->total - memory->free;
    return 0;
}
