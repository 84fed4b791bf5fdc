/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * Memory for the device. In a guest it works with guest-physical addresses, so a page must not move after its address was read, and
 * mlock does not promise that: compaction and the collapse into huge pages move locked pages. Registering the memory as buffers of an
 * io_uring takes a long-term pin, which does; only then are the addresses read from pagemap.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

enum { PAGE = VNIC_PAGE_SIZE, PER_PAGE = VNIC_PAGE_LIST_ENTRIES };

static size_t pages_of(size_t size) { return (size + PAGE - 1) / PAGE; }

static int arena_tables(struct arena *a, size_t size)
{
	a->pages = pages_of(size);
	a->ring = a->memfd = -1;
	a->base = MAP_FAILED;
	a->addrs = calloc(a->pages, sizeof *a->addrs);
	a->used = calloc(a->pages, 1);
	if (!a->addrs || !a->used)
		return fail(ENOMEM, "%zu bytes for the device: out of memory", size);
	return 0;
}

static int read_pagemap(struct arena *a)
{
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return fail(errno, "/proc/self/pagemap: %s", strerror(errno));
	size_t size = a->pages * 8;
	ssize_t n = pread(fd, a->addrs, size, (off_t)((uintptr_t)a->base / PAGE * 8));
	close(fd);
	if (n != (ssize_t)size)
		return fail(EIO, "/proc/self/pagemap: %zd of %zu bytes", n, size);
	for (size_t i = 0; i < a->pages; i++) {
		uint64_t frame = a->addrs[i] & ((UINT64_C(1) << 55) - 1);
		if (!(a->addrs[i] >> 63) || !frame)
			return fail(EPERM, "/proc/self/pagemap hides page frames: run as root (CAP_SYS_ADMIN)");
		a->addrs[i] = frame * PAGE;
	}
	return 0;
}

int arena_pin(struct arena *a, size_t size)
{
	if (arena_tables(a, size) < 0)
		return -1;
	size = a->pages * PAGE;
	a->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->base == MAP_FAILED)
		return fail(errno, "mmap of %zu bytes: %s", size, strerror(errno));
	if (madvise(a->base, size, MADV_DONTFORK) < 0)
		return fail(errno, "madvise: %s", strerror(errno));
	madvise(a->base, size, MADV_NOHUGEPAGE); /* fails where the kernel has no huge pages, which is as good */
	memset(a->base, 0, size);                /* make it exist */

	struct io_uring_params params = { 0 };
	a->ring = (int)syscall(SYS_io_uring_setup, 1, &params);
	if (a->ring < 0)
		return fail(errno, "io_uring, which pins the memory: %s; set kernel.io_uring_disabled=0", strerror(errno));
	/* a buffer is at most 1 GiB, as the whole arena is */
	struct iovec v = { a->base, size };
	if (syscall(SYS_io_uring_register, a->ring, IORING_REGISTER_BUFFERS, &v, 1) < 0)
		return fail(errno, "pin of %zu bytes: %s; run as root, raise ulimit -l, or ask for less", size, strerror(errno));
	return read_pagemap(a);
}

int arena_memfd(struct arena *a, size_t size, uint64_t at)
{
	if (arena_tables(a, size) < 0)
		return -1;
	size = a->pages * PAGE;
	a->memfd = memfd_create("vnic", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (a->memfd < 0 || ftruncate(a->memfd, (off_t)size) < 0 || fcntl(a->memfd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return fail(errno, "memfd of %zu bytes: %s", size, strerror(errno));
	a->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
	if (a->base == MAP_FAILED)
		return fail(errno, "mmap of %zu bytes: %s", size, strerror(errno));
	for (size_t i = 0; i < a->pages; i++)
		a->addrs[i] = at + i * PAGE;
	return 0;
}

int arena_iova(struct arena *a, size_t size, uint64_t at)
{
	if (arena_tables(a, size) < 0)
		return -1;
	size = a->pages * PAGE;
	a->base = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->base == MAP_FAILED || madvise(a->base, size, MADV_DONTFORK) < 0)
		return fail(errno, "mmap of %zu bytes: %s", size, strerror(errno));
	for (size_t i = 0; i < a->pages; i++)
		a->addrs[i] = at + i * PAGE;
	return 0;
}

void arena_close(struct arena *a, bool mapped)
{
	bool close_all = a->addrs && !mapped;
	if (close_all && a->base != MAP_FAILED)
		munmap(a->base, a->pages * PAGE);
	if (close_all && a->ring >= 0)
		close(a->ring);
	if (close_all && a->memfd >= 0)
		close(a->memfd);
	free(a->addrs);
	free(a->used);
	memset(a, 0, sizeof *a);
}

uint64_t arena_addr(const struct arena *a, const void *p)
{
	size_t at = (size_t)((const uint8_t *)p - a->base);
	return a->addrs[at / PAGE] + at % PAGE;
}

/* First fit: a driver allocates a few large pieces. */
void *vnic_alloc(struct vnic_device *dev, size_t size)
{
	struct arena *a = &dev->arena;
	size_t want = pages_of(size), run = 0;
	if (!want) {
		fail(EINVAL, "allocation of 0 bytes");
		return NULL;
	}
	for (size_t i = 0; i < a->pages; i++) {
		run = a->used[i] ? 0 : run + 1;
		if (run < want)
			continue;
		size_t first = i + 1 - want;
		memset(a->used + first, USED, want);
		return memset(a->base + first * PAGE, 0, want * PAGE);
	}
	fail(ENOMEM, "%zu bytes: the %zu bytes for the device are used up; give vnic_open more", size, a->pages * PAGE);
	return NULL;
}

void vnic_free(struct vnic_device *dev, void *addr, size_t size)
{
	if (addr)
		memset(dev->arena.used + (size_t)((uint8_t *)addr - dev->arena.base) / PAGE, dev->unsure && !dev->ended ? KEPT : FREE, pages_of(size));
}

void arena_release(struct arena *a)
{
	for (size_t i = 0; i < a->pages; i++)
		if (a->used[i] == KEPT)
			a->used[i] = FREE;
}

int page_list(struct vnic_device *dev, const void *p, size_t size, void **list, size_t *list_size, uint64_t *root, uint8_t *levels)
{
	const struct arena *a = &dev->arena;
	const uint8_t *base = p;
	if (base < a->base || (size_t)(base - a->base) > a->pages * PAGE || size > a->pages * PAGE - (size_t)(base - a->base) || (size_t)(base - a->base) % PAGE)
		return fail(EINVAL, "memory at %p of %zu bytes is not of vnic_alloc, or does not begin at a page", p, size);
	size_t first = (size_t)(base - a->base) / PAGE, n = pages_of(size), leaves = (n + PER_PAGE - 1) / PER_PAGE;
	*levels = leaves > 1 ? 2 : 1;
	*list_size = (leaves + (leaves > 1)) * PAGE; /* the leaves, then the page above them */
	uint64_t *entries = vnic_alloc(dev, *list_size);
	if (!entries)
		return -1;
	memcpy(entries, a->addrs + first, n * sizeof *entries);
	for (size_t i = 0; leaves > 1 && i < leaves; i++)
		entries[leaves * PER_PAGE + i] = arena_addr(a, entries + i * PER_PAGE);
	*root = arena_addr(a, entries + (leaves > 1 ? leaves * PER_PAGE : 0));
	*list = entries;
	return 0;
}
