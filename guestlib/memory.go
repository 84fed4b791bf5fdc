package guestlib

import (
	"context"
	"errors"
	"fmt"

	"github.com/falcon-vnic/vnic/queues/abi"
)

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
		if ranges = append(ranges, Range{r.Address, r.Length}); len(ranges) >= int(r.Ranges) {
			return ranges, nil
		}
	}
}

// Violation is a rule of docs/abi that a driver of this function broke, as the device noticed it: a
// mistake of this library or of an earlier driver.
type Violation = abi.Violation

// Violations asks the device for the rules that drivers of the function have broken, newest first.
func (d *Device) Violations(ctx context.Context) (list []Violation, err error) {
	for {
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
}
