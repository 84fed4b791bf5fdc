/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * A function that is a PCI device of its own (docs/abi section 11). With an IOMMU it is taken through the kernel's vfio-pci, which gives
 * interrupts, and lets the device reach nothing but the memory that was mapped. Without one its BARs are mapped from sysfs, and a timer
 * stands in for interrupts.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "internal.h"

#define SYSFS "/sys/bus/pci/devices"
#define IOVA (UINT64_C(1) << 32) /* above what an IOMMU keeps for interrupts */

enum { DIR_MAX = 128, PATH = 300, COMMAND = 4, MEMORY_MASTER = 6, LOOK_NS = 500000 };

static int put(const char *dir, const char *name, const char *text)
{
	char path[PATH];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : write(fd, text, strlen(text));
	int err = errno;
	if (fd >= 0)
		close(fd);
	errno = err;
	return n < 0 ? -1 : 0;
}

static void *map_resource(const char *dir, const char *name, size_t *size)
{
	char path[PATH];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat st;
	off_t n = fd < 0 || fstat(fd, &st) < 0 ? -1 : st.st_size;
	void *p = n <= 0 ? MAP_FAILED : mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd >= 0)
		close(fd);
	*size = p == MAP_FAILED ? 0 : (size_t)n;
	return p == MAP_FAILED ? NULL : p;
}

/* The name that a link of the device leads to; "" if there is none. */
static const char *target(const char *dir, const char *name, char *buf, size_t size)
{
	char path[PATH];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	ssize_t n = readlink(path, buf, size - 1);
	buf[n < 0 ? 0 : n] = 0;
	const char *slash = strrchr(buf, '/');
	return slash ? slash + 1 : buf;
}

static void *map_region(int device, uint32_t index, size_t *size)
{
	struct vfio_region_info r = { .argsz = sizeof r, .index = index };
	if (ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &r) < 0 || !(r.flags & VFIO_REGION_INFO_FLAG_MMAP) || !r.size)
		return NULL;
	void *p = mmap(NULL, r.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)r.offset);
	*size = p == MAP_FAILED ? 0 : r.size;
	return p == MAP_FAILED ? NULL : p;
}

static int interrupt(struct vnic_device *dev, uint32_t kind)
{
	struct vfio_irq_set head = { sizeof head + sizeof(int32_t), VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER, kind, 0, 1 };
	_Alignas(struct vfio_irq_set) uint8_t set[sizeof head + sizeof(int32_t)]; /* the eventfd stands behind it */
	memcpy(set, &head, sizeof head);
	memcpy(set + sizeof head, &(int32_t){ dev->fd }, sizeof(int32_t));
	struct vfio_irq_info i = { .argsz = sizeof i, .index = kind };
	if (ioctl(dev->win->device, VFIO_DEVICE_GET_IRQ_INFO, &i) < 0 || !i.count)
		return -1;
	return ioctl(dev->win->device, VFIO_DEVICE_SET_IRQS, set);
}

/* Gives the device to vfio-pci, where it stays. */
static int bind_vfio(const char *dir)
{
	char buf[PATH];
	const char *driver = target(dir, "driver", buf, sizeof buf);
	if (!strcmp(driver, "vfio-pci"))
		return 0;
	if (*driver || put(dir, "driver_override", "vfio-pci") < 0 || put(SYSFS "/..", "drivers_probe", strrchr(dir, '/') + 1) < 0)
		return -1;
	if (!strcmp(target(dir, "driver", buf, sizeof buf), "vfio-pci"))
		return 0;
	put(dir, "driver_override", "\n");
	return -1;
}

/* Takes the device through vfio-pci: 1, or 0 where this guest does not have what that needs. */
static int take_by_vfio(struct vnic_device *dev, const char *dir, size_t memory)
{
	struct window *w = dev->win;
	struct vfio_group_status status = { .argsz = sizeof status };
	char buf[PATH], path[PATH];
	size_t n;
	const char *group = target(dir, "iommu_group", buf, sizeof buf);
	if (!*group || bind_vfio(dir) < 0)
		return 0;
	snprintf(path, sizeof path, "/dev/vfio/%s", group);
	w->container = open("/dev/vfio/vfio", O_RDWR | O_CLOEXEC);
	w->group = open(path, O_RDWR | O_CLOEXEC);
	if (w->container < 0 || w->group < 0)
		return fail(errno, "%s: %s; a group of devices that share a slot is one process's", path, strerror(errno));
	if (ioctl(w->group, VFIO_GROUP_GET_STATUS, &status) < 0 || !(status.flags & VFIO_GROUP_FLAGS_VIABLE))
		return fail(EBUSY, "%s holds devices that vfio-pci does not have", path);
	if (ioctl(w->group, VFIO_GROUP_SET_CONTAINER, &w->container) < 0 || ioctl(w->container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU) < 0)
		return fail(errno, "%s: IOMMU: %s", path, strerror(errno));
	w->device = ioctl(w->group, VFIO_GROUP_GET_DEVICE_FD, strrchr(dir, '/') + 1);
	if (w->device < 0)
		return fail(errno, "%s: %s", dir, strerror(errno));
	munmap(w->shared, w->size);
	w->shared = map_region(w->device, VFIO_PCI_BAR2_REGION_INDEX, &w->size);
	w->regs = map_region(w->device, VFIO_PCI_BAR0_REGION_INDEX, &w->regs_size);
	if (!w->shared || !w->regs || window_find(w) != 1)
		return fail(EIO, "%s: its BARs cannot be mapped", dir);

	struct vfio_region_info config = { .argsz = sizeof config, .index = VFIO_PCI_CONFIG_REGION_INDEX };
	uint16_t command = 0;
	if (ioctl(w->device, VFIO_DEVICE_GET_REGION_INFO, &config) < 0 || pread(w->device, &command, 2, (off_t)config.offset + COMMAND) != 2)
		return fail(EIO, "%s: its configuration space cannot be read", dir);
	command |= MEMORY_MASTER; /* DRV-1103 */
	if (pwrite(w->device, &command, 2, (off_t)config.offset + COMMAND) != 2)
		return fail(EIO, "%s: its configuration space cannot be written", dir);
	dev->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (dev->fd < 0 || (interrupt(dev, VFIO_PCI_MSIX_IRQ_INDEX) < 0 && interrupt(dev, VFIO_PCI_MSI_IRQ_INDEX) < 0))
		return fail(errno, "%s: interrupts: %s", dir, strerror(errno));

	if (arena_iova(&dev->arena, memory, IOVA) < 0)
		return -1;
	n = dev->arena.pages * VNIC_PAGE_SIZE;
	struct vfio_iommu_type1_dma_map m = {
		.argsz = sizeof m, .flags = VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE, .vaddr = (uintptr_t)dev->arena.base, .iova = IOVA, .size = n,
	};
	if (ioctl(w->container, VFIO_IOMMU_MAP_DMA, &m) < 0)
		return fail(errno, "%zu bytes for the device: %s; raise ulimit -l, or ask for less", n, strerror(errno));
	return 1;
}

static int take_by_sysfs(struct vnic_device *dev, const char *dir, size_t memory)
{
	struct window *w = dev->win;
	char path[PATH];
	uint16_t command = 0;
	w->regs = map_resource(dir, "resource0", &w->regs_size);
	if (!w->regs)
		return fail(errno, "%s: BAR0: %s", dir, strerror(errno));
	snprintf(path, sizeof path, "%s/config", dir);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	bool ok = fd >= 0 && pread(fd, &command, 2, COMMAND) == 2;
	command |= MEMORY_MASTER;
	ok = ok && pwrite(fd, &command, 2, COMMAND) == 2;
	if (fd >= 0)
		close(fd);
	if (!ok)
		return fail(errno, "%s: %s", path, strerror(errno));
	struct itimerspec often = { { 0, LOOK_NS }, { 0, LOOK_NS } };
	dev->fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	if (dev->fd < 0 || timerfd_settime(dev->fd, 0, &often, NULL) < 0)
		return fail(errno, "timer: %s", strerror(errno));
	return arena_pin(&dev->arena, memory);
}

/* Maps the window of a device: 1 if it is the function's and free. */
static int look_at(struct window *w, const char *dir, uint32_t function, bool named)
{
	char buf[PATH];
	if (put(dir, "enable", "1") < 0 && !(errno == EBUSY && !strcmp(target(dir, "driver", buf, sizeof buf), "vfio-pci")))
		return fail(errno, "%s: %s; run as root", dir, strerror(errno));
	w->shared = map_resource(dir, "resource2", &w->size);
	if (!w->shared || w->size < sizeof(struct vnic_window_header))
		return fail(EIO, "%s: BAR2 cannot be mapped", dir);
	int found = window_find(w);
	if (found == 1 && ((function != VNIC_FUNCTION_ASSIGNED && function != w->function) || (!named && window_busy(w))))
		found = 0;
	if (found != 1) {
		munmap(w->shared, w->size);
		w->shared = NULL;
	}
	return found;
}

static bool has_ids(const char *dir)
{
	static const struct { const char *name, *want; } ids[] = { { "vendor", "0x1af4" }, { "device", "0x10f0" } };
	for (size_t i = 0; i < 2; i++) {
		char path[PATH], text[16] = "";
		snprintf(path, sizeof path, "%s/%s", dir, ids[i].name);
		int fd = open(path, O_RDONLY | O_CLOEXEC);
		ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
		if (fd >= 0)
			close(fd);
		if (n < 6 || strncmp(text, ids[i].want, 6))
			return false;
	}
	return true;
}

/* Finds the device at an address, or the first that is the function's and free. */
static int find(struct window *w, const char *address, uint32_t function, char dir[DIR_MAX])
{
	if (*address) {
		snprintf(dir, DIR_MAX, SYSFS "/%.64s", address);
		return look_at(w, dir, function, true);
	}
	DIR *all = opendir(SYSFS);
	int found = 0;
	for (struct dirent *e; all && !found && (e = readdir(all));) {
		snprintf(dir, DIR_MAX, SYSFS "/%.64s", e->d_name);
		if (has_ids(dir))
			found = look_at(w, dir, function, function != VNIC_FUNCTION_ASSIGNED);
	}
	if (all)
		closedir(all);
	return found;
}

int pci_dial(struct vnic_device *dev, const char *address, size_t memory, uint32_t function)
{
	char dir[DIR_MAX];
	struct window *w = dev->win = calloc(1, sizeof *w);
	if (!w)
		return fail(ENOMEM, "out of memory");
	w->container = w->group = w->device = -1;
	int found = find(w, address, function, dir);
	if (!found)
		return fail(ENODEV, "no PCI device of this function is here and free; has QEMU a vfio-user-pci device for it?");
	if (found < 0)
		return -1;
	int taken = take_by_vfio(dev, dir, memory);
	if (taken < 0 || (!taken && take_by_sysfs(dev, dir, memory) < 0))
		return -1;
	return window_open(w);
}

void pci_close(struct vnic_device *dev)
{
	struct window *w = dev->win;
	if (!w)
		return;
	dev->ended = window_leave(w);
	if (w->shared)
		munmap(w->shared, w->size);
	if (w->regs)
		munmap(w->regs, w->regs_size);
	for (int *fds[] = { &w->device, &w->group, &w->container }, i = 0; i < 3; i++)
		if (*fds[i] >= 0)
			close(*fds[i]);
	free(w);
	dev->win = NULL;
}
