/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/*
 * The program of TestCWaitsEndWhenTheFunctionStops. It waits without end, says what ended that and which event it gets, and uses the
 * function again after a reset.
 *
 *   waits URL completion|request|connection|command
 */
#include <stdio.h>
#include <string.h>

#include "vnic.h"

static int failed(void)
{
	fprintf(stderr, "%s\n", vnic_error());
	return 1;
}

int main(int argc, char **argv)
{
	struct vnic_device *dev = argc == 3 ? vnic_open(argv[1], 1 << 20) : NULL;
	struct vnic_cq *cq = dev ? vnic_create_cq(dev, 16) : NULL; /* its number is 2, the first of all */
	struct vnic_qp_attr attr = { .send_cq = cq };
	if (!cq || vnic_alloc_pd(dev, &attr.pdn) < 0 || vnic_listen(dev, 7) < 0)
		return failed();
	struct vnic_qp *qp = vnic_create_qp(dev, &attr);
	if (!qp)
		return failed();
	printf("waits\n");
	fflush(stdout);
	getchar(); /* until the device may do as it does */
	struct vnic_request request;
	uint32_t pdn;
	int n;
	if (!strcmp(argv[2], "completion"))
		n = vnic_wait_cq(cq, -1);
	else if (!strcmp(argv[2], "request"))
		n = vnic_get_request(dev, &request, -1);
	else if (!strcmp(argv[2], "connection")) /* to itself: it does not answer */
		n = vnic_connect(qp, vnic_get_info(dev)->gid, 7, NULL, 0, NULL, NULL, -1);
	else
		n = vnic_alloc_pd(dev, &pdn);
	printf("%s\n", n < 0 ? vnic_error() : "it came");
	struct vnic_async_event e = { 0 };
	if (vnic_get_event(dev, &e, 0) < 0)
		return failed();
	printf("event %u\n", e.type);
	if (vnic_reset(dev) < 0 || vnic_destroy_qp(qp) < 0 || vnic_destroy_cq(cq) < 0)
		return failed();
	if (vnic_alloc_pd(dev, &pdn) < 0 || !(cq = vnic_create_cq(dev, 16)) || vnic_wait_cq(cq, 1) < 0 || vnic_destroy_cq(cq) < 0)
		return failed();
	printf("works again\n");
	vnic_close(dev);
	return 0;
}
