// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * Memory that the device reaches: queues, and lists of pages as it reads them (DRV-403).
 *
 * None of it is freed or unpinned while the device may reach it (DRV-208, DRV-402): until
 * the command that destroys the object has completed, or the device has confirmed the end
 * of the life. What is given back between the loss of the device and that end is kept.
 */
#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "vnic.h"

#define VNIC_LIST_SHIFT 9 /* VNIC_PAGE_LIST_ENTRIES */

/* The device has confirmed that it reaches none of the memory that it was told of. */
void vnic_life_over(struct vnic_fn *fn)
{
	struct vnic_memory *m, *next;
	LIST_HEAD(kept);

	spin_lock_irq(&fn->life_lock);
	WRITE_ONCE(fn->life, fn->life + 1);
	WRITE_ONCE(fn->ending, false);
	list_splice_init(&fn->kept, &kept);
	spin_unlock_irq(&fn->life_lock);
	wake_up_all(&fn->over);
	list_for_each_entry_safe(m, next, &kept, link)
		m->release(m);
}

/*
 * Frees memory that no outstanding command names, or keeps it while the device may still
 * reach it.
 */
void vnic_give_back(struct vnic_fn *fn, struct vnic_memory *m)
{
	unsigned long flags;
	bool keep;

	spin_lock_irqsave(&fn->life_lock, flags);
	keep = fn->ending && m->life == fn->life;
	if (keep)
		list_add_tail(&m->link, &fn->kept);
	spin_unlock_irqrestore(&fn->life_lock, flags);
	if (!keep)
		m->release(m);
}

/*
 * Waits until memory of that life need not be kept any more. Kernel users free their buffers
 * when the object is destroyed, and the driver cannot keep these for them.
 */
void vnic_await_over(struct vnic_fn *fn, u32 life)
{
	wait_event(fn->over, !READ_ONCE(fn->ending) || life != READ_ONCE(fn->life));
}

/* The driver leaves a device that has confirmed nothing: what is kept is never freed. */
void vnic_leak(struct vnic_fn *fn)
{
	struct list_head *each;
	size_t n = 0;

	list_for_each(each, &fn->kept)
		n++;
	if (n)
		dev_warn(&fn->pdev->dev,
			 "the NIC may still reach %zu regions, queues and page lists: their memory is lost until the guest reboots\n",
			 n);
}

static void vnic_area_release(struct vnic_memory *m)
{
	struct vnic_area *area = container_of(m, struct vnic_area, memory);
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
	struct vnic_area *area = kzalloc_obj(*area);
	unsigned int i, n;
	dma_addr_t dma;

	if (!area)
		return NULL;
	size = PAGE_ALIGN(size);
	n = size >> PAGE_SHIFT;
	area->memory.release = vnic_area_release;
	area->fn = fn;
	area->size = size;
	pci_dev_get(fn->pdev);
	area->buf = vmalloc_user(size);
	area->pages = kvmalloc_array(n, sizeof(*area->pages), GFP_KERNEL);
	if (!area->buf || !area->pages)
		goto err_release;
	for (i = 0; i < n; i++) {
		dma = dma_map_page(&fn->pdev->dev, vmalloc_to_page(area->buf + i * PAGE_SIZE), 0,
				   PAGE_SIZE, DMA_BIDIRECTIONAL);
		if (dma_mapping_error(&fn->pdev->dev, dma))
			goto err_release;
		area->pages[area->num_pages++] = dma;
	}
	return area;

err_release:
	vnic_area_release(&area->memory);
	return NULL;
}

void vnic_area_free(struct vnic_area *area)
{
	if (!area)
		return;
	if (area->mapped)
		rdma_user_mmap_entry_remove(&area->entry); /* vnic_mmap_free() after the last use */
	else
		vnic_give_back(area->fn, &area->memory);
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
	rdma_user_mmap_entry_put(entry); /* the mapping has references to its pages */
	return err;
}

void vnic_mmap_free(struct rdma_user_mmap_entry *entry)
{
	struct vnic_area *area = container_of(entry, struct vnic_area, entry);

	vnic_give_back(area->fn, &area->memory);
}

static void vnic_page_list_release(struct vnic_memory *m)
{
	struct vnic_page_list *list = container_of(m, struct vnic_page_list, memory);
	struct device *dma = &list->fn->pdev->dev;
	unsigned int i;

	for (i = 0; i < list->num; i++)
		dma_free_coherent(dma, PAGE_SIZE, list->pages[i].va, list->pages[i].dma);
	kvfree(list);
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

/*
 * Makes an empty list of n entries, for a command about objects of a life: the lowest
 * level first, the root last. -EIO: that life is over.
 */
struct vnic_page_list *vnic_page_list_alloc(struct vnic_fn *fn, u32 life, size_t n)
{
	size_t level = n, pages = 0, first = 0, below, i;
	struct vnic_page_list *list;
	unsigned int levels = 0;
	__le64 *at;

	if (!vnic_alive(fn, life))
		return ERR_PTR(-EIO);
	do {
		level = DIV_ROUND_UP(level, VNIC_PAGE_LIST_ENTRIES);
		pages += level;
		levels++;
	} while (level > 1);
	if (levels > VNIC_MAX_PAGE_LEVELS)
		return ERR_PTR(-EINVAL);
	list = kvzalloc(struct_size(list, pages, pages), GFP_KERNEL);
	if (!list)
		return ERR_PTR(-ENOMEM);
	list->memory.release = vnic_page_list_release;
	list->memory.life = life;
	list->fn = fn;
	list->levels = levels;
	while (list->num < pages) {
		if (vnic_page_list_page(list))
			goto err_release;
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
	return list;

err_release:
	vnic_page_list_release(&list->memory);
	return ERR_PTR(-ENOMEM);
}

void vnic_page_list_set(struct vnic_page_list *list, size_t i, u64 address)
{
	__le64 *at = list->pages[i >> VNIC_LIST_SHIFT].va;

	at[i % VNIC_PAGE_LIST_ENTRIES] = cpu_to_le64(address);
}

/* The device copied the list before its command completed (DEV-404). */
void vnic_page_list_free(struct vnic_page_list *list)
{
	vnic_give_back(list->fn, &list->memory);
}

/* A list of n pages of an area. The device may reach these from now on. */
struct vnic_page_list *vnic_area_list(struct vnic_area *area, u32 life, size_t first, size_t n)
{
	struct vnic_page_list *list = vnic_page_list_alloc(area->fn, life, n);
	size_t i;

	if (IS_ERR(list))
		return list;
	for (i = 0; i < n; i++)
		vnic_page_list_set(list, i, area->pages[first + i]);
	area->memory.life = life;
	return list;
}
