// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Memory of queues, and lists of pages as the device reads them (DRV-403). */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "vnic.h"

#define VNIC_LIST_SHIFT 9 /* VNIC_PAGE_LIST_ENTRIES */

static void vnic_area_release(struct vnic_area *area)
{
	struct device *dma = &area->fn->pdev->dev;
	unsigned int i;

	for (i = 0; i < area->num_pages; i++)
		dma_unmap_page(dma, area->pages[i], PAGE_SIZE, DMA_BIDIRECTIONAL);
	kvfree(area->pages);
	vfree(area->buf);
	pci_dev_put(area->fn->pdev);
	kfree(area);
}

/* Zeroed memory that a program can map. */
struct vnic_area *vnic_area_alloc(struct vnic_fn *fn, size_t size)
{
	struct vnic_area *area = kzalloc(sizeof(*area), GFP_KERNEL);
	unsigned int i, n;
	dma_addr_t dma;

	if (!area)
		return NULL;
	size = PAGE_ALIGN(size);
	n = size >> PAGE_SHIFT;
	area->fn = fn;
	area->size = size;
	pci_dev_get(fn->pdev);
	area->buf = vmalloc_user(size);
	area->pages = kvmalloc_array(n, sizeof(*area->pages), GFP_KERNEL);
	if (!area->buf || !area->pages)
		goto fail;
	for (i = 0; i < n; i++) {
		dma = dma_map_page(&fn->pdev->dev, vmalloc_to_page(area->buf + i * PAGE_SIZE), 0,
				   PAGE_SIZE, DMA_BIDIRECTIONAL);
		if (dma_mapping_error(&fn->pdev->dev, dma))
			goto fail;
		area->pages[area->num_pages++] = dma;
	}
	return area;
fail:
	vnic_area_release(area);
	return NULL;
}

void vnic_area_free(struct vnic_area *area)
{
	if (!area)
		return;
	if (area->mapped)
		rdma_user_mmap_entry_remove(&area->entry); /* the last user frees it */
	else
		vnic_area_release(area);
}

/* Lets the programs of a context map the area. */
int vnic_area_offer(struct vnic_area *area, struct ib_ucontext *uctx)
{
	int err = rdma_user_mmap_entry_insert(uctx, &area->entry, area->size);

	area->mapped = !err;
	return err;
}

u64 vnic_area_offset(struct vnic_area *area)
{
	return rdma_user_mmap_get_offset(&area->entry);
}

int vnic_mmap(struct ib_ucontext *uctx, struct vm_area_struct *vma)
{
	struct rdma_user_mmap_entry *entry;
	struct vnic_area *area;
	int err = -EINVAL;

	entry = rdma_user_mmap_entry_get(uctx, vma);
	if (!entry)
		return -EINVAL;
	area = container_of(entry, struct vnic_area, entry);
	if (vma->vm_end - vma->vm_start == area->size && (vma->vm_flags & VM_SHARED))
		err = remap_vmalloc_range(vma, area->buf, 0);
	rdma_user_mmap_entry_put(entry); /* what is mapped holds its pages */
	return err;
}

void vnic_mmap_free(struct rdma_user_mmap_entry *entry)
{
	vnic_area_release(container_of(entry, struct vnic_area, entry));
}

static int vnic_page_list_page(struct vnic_page_list *list)
{
	unsigned int i = list->num;

	list->pages[i].va = dma_alloc_coherent(&list->fn->pdev->dev, PAGE_SIZE,
					       &list->pages[i].dma, GFP_KERNEL);
	if (!list->pages[i].va)
		return -ENOMEM;
	list->num++;
	return 0;
}

/* Makes an empty list of n entries: the lowest level first, the root last. */
int vnic_page_list_alloc(struct vnic_page_list *list, struct vnic_fn *fn, size_t n)
{
	size_t level = n, pages = 0, first = 0, below, i;
	__le64 *at;

	memset(list, 0, sizeof(*list));
	list->fn = fn;
	do {
		level = DIV_ROUND_UP(level, VNIC_PAGE_LIST_ENTRIES);
		pages += level;
		list->levels++;
	} while (level > 1);
	if (list->levels > VNIC_MAX_PAGE_LEVELS)
		return -EINVAL;
	list->pages = kvcalloc(pages, sizeof(*list->pages), GFP_KERNEL);
	if (!list->pages)
		return -ENOMEM;
	while (list->num < pages) {
		if (vnic_page_list_page(list)) {
			vnic_page_list_free(list);
			return -ENOMEM;
		}
	}
	/* Each page of a level is an entry of the one above. */
	below = DIV_ROUND_UP(n, VNIC_PAGE_LIST_ENTRIES);
	while (below > 1) {
		for (i = 0; i < below; i++) {
			at = list->pages[first + below + (i >> VNIC_LIST_SHIFT)].va;
			at[i % VNIC_PAGE_LIST_ENTRIES] = cpu_to_le64(list->pages[first + i].dma);
		}
		first += below;
		below = DIV_ROUND_UP(below, VNIC_PAGE_LIST_ENTRIES);
	}
	list->root = list->pages[pages - 1].dma;
	return 0;
}

void vnic_page_list_set(struct vnic_page_list *list, size_t i, u64 address)
{
	__le64 *at = list->pages[i >> VNIC_LIST_SHIFT].va;

	at[i % VNIC_PAGE_LIST_ENTRIES] = cpu_to_le64(address);
}

int vnic_page_list_init(struct vnic_page_list *list, struct vnic_fn *fn,
			const dma_addr_t *pages, size_t n)
{
	int err = vnic_page_list_alloc(list, fn, n);
	size_t i;

	for (i = 0; !err && i < n; i++)
		vnic_page_list_set(list, i, pages[i]);
	return err;
}

/* The device copied the list before its command completed (DEV-404). */
void vnic_page_list_free(struct vnic_page_list *list)
{
	unsigned int i;

	for (i = 0; i < list->num; i++)
		dma_free_coherent(&list->fn->pdev->dev, PAGE_SIZE, list->pages[i].va,
				  list->pages[i].dma);
	kvfree(list->pages);
	memset(list, 0, sizeof(*list));
}

int vnic_area_list(struct vnic_area *area, struct vnic_page_list *list)
{
	return vnic_page_list_init(list, area->fn, area->pages, area->num_pages);
}
