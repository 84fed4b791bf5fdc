/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The program of TestCKeepsMemory, whose device ends badly: it does not answer the command for a
 * completion queue. It says whether the queue's memory was given out again, and whether all memory
 * is still mapped after vnic_close.
 *
 *   keeps URL
 */
#include <stdio.h>
#include <string.h>

#include "vnic.h"

enum { size = 1 << 16, entries = 512 };

int main(int argc, char **argv)
{
	struct vnic_device *dev = argc == 2 ? vnic_open(argv[1], 1 << 20) : NULL;
	if (!dev) {
		fprintf(stderr, "%s\n", vnic_error());
		return 1;
	}
	printf("open\n");
	fflush(stdout);
	getchar(); /* until the device may do as it does */
	void *first = vnic_alloc(dev, size);
	vnic_free(dev, first, size);
	if (vnic_create_cq(dev, entries)) { /* in the same place */
		fprintf(stderr, "there is a completion queue\n");
		return 1;
	}
	printf("%s\n", vnic_error());
	printf(vnic_alloc(dev, size) == first ? "given out\n" : "kept\n");
	vnic_close(dev);
	FILE *maps = fopen("/proc/self/maps", "r");
	int mapped = 0;
	for (char line[512]; maps && fgets(line, sizeof line, maps);)
		mapped |= strstr(line, "memfd:vnic") != NULL;
	printf(mapped ? "mapped\n" : "unmapped\n");
	return 0;
}
