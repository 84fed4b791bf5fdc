// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Reads the clock of the first device twice, by ibv_query_rt_values_ex, and what it counts in. */
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <stdio.h>

static int64_t clock_of(struct ibv_context *ctx)
{
	struct ibv_values_ex v = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	if (ibv_query_rt_values_ex(ctx, &v) || !(v.comp_mask & IBV_VALUES_MASK_RAW_CLOCK))
		return -1;
	return v.raw_clock.tv_nsec;
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *ctx = list && *list ? ibv_open_device(*list) : NULL;
	struct ibv_device_attr_ex attr = {};
	int64_t first, second;

	if (!ctx || ibv_query_device_ex(ctx, NULL, &attr))
		return 1;
	first = clock_of(ctx);
	second = clock_of(ctx);
	printf("%" PRId64 " kHz, %" PRId64 " to %" PRId64 "\n", (int64_t)attr.hca_core_clock, first, second);
	return first <= 0 || second <= first || attr.hca_core_clock != 1000000;
}
