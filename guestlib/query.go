package guestlib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Counter is a counter of a function. Its String is the counter's name in Linux.
type Counter = abi.Counter

// Counters returns the function's counters since it was enabled. The index is the Counter.
func (d *Device) Counters(ctx context.Context) (list []uint64, err error) {
	for {
		var r abi.Counters
		if err := d.admin.Load().do(ctx, abi.AdminOpQueryCounters, &abi.QueryCounters{First: abi.Counter(len(list))}, &r, nil); err != nil {
			return nil, err
		}
		if int(r.Total) <= len(list) {
			return nil, protocolError("%s: %d counters in all, behind the first %d", abi.AdminOpQueryCounters, r.Total, len(list))
		}
		for b := r.Values[:]; len(b) > 0; b = b[8:] {
			if list = append(list, binary.LittleEndian.Uint64(b)); len(list) == int(r.Total) {
				return list, nil
			}
		}
	}
}

// Clock reads the device's clock, which gives completions their Timestamp.
func (d *Device) Clock(ctx context.Context) (time.Duration, error) {
	v, err := registers{d.stream.Load()}.read(ctx, abi.RegClock, 8)
	return time.Duration(v), err
}

// Range is a range of device addresses.
type Range struct {
	Address uint64 `json:"address"`
	Length  uint64 `json:"length"`
}

func (r Range) String() string { return fmt.Sprintf("%#x+%#x", r.Address, r.Length) }

// contains reports whether the page at addr lies in r.
func (r Range) contains(addr uint64) bool {
	return addr >= r.Address && addr-r.Address < r.Length && r.Length-(addr-r.Address) >= abi.PageSize
}

// maxRanges is how many parts the memory of a device can have: Linux makes no more mappings for a
// device (vfio_iommu_type1's dma_entry_limit), and the memory of a guest itself has a few.
const maxRanges = 1<<16 - 1

// Memory asks the device for the device addresses that the function can access now: the part of
// this guest's memory that the device has mapped and that lies in the function's DMA window. Only
// such memory can be registered.
func (d *Device) Memory(ctx context.Context) (ranges []Range, err error) {
	for {
		var r abi.QueryMemoryResult
		err := d.admin.Load().do(ctx, abi.AdminOpQueryMemory, &abi.QueryMemory{Index: uint32(len(ranges))}, &r, nil)
		if errors.Is(err, ErrNotFound) {
			return ranges, nil
		}
		if err != nil {
			return nil, err
		}
		if r.Ranges > maxRanges {
			return nil, protocolError("%s: %d ranges; there can be %d", abi.AdminOpQueryMemory, r.Ranges, maxRanges)
		}
		if ranges = append(ranges, Range{r.Address, r.Length}); len(ranges) >= int(r.Ranges) {
			return ranges, nil
		}
	}
}

// Violation is a rule of docs/abi that a driver of this function broke, as the device noticed it: a
// mistake of this library or of an earlier driver.
type Violation = abi.Violation

// maxViolations is how many violations the device keeps of a function (DEV-105).
const maxViolations = 64

// Violations asks the device for the rules that drivers of the function have broken, newest first.
func (d *Device) Violations(ctx context.Context) (list []Violation, err error) {
	for len(list) < maxViolations {
		var v Violation
		err := d.admin.Load().do(ctx, abi.AdminOpQueryViolation, &abi.QueryViolation{Index: uint32(len(list))}, &v, nil)
		if errors.Is(err, ErrNotFound) {
			return list, nil
		}
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
