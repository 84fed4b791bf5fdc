package guestlib

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// registers accesses the function's registers by messages on a stream.
type registers struct{ s *stream }

// control writes the control register and waits until the function has the state want.
func (r registers) control(ctx context.Context, c abi.Control, want abi.State) error {
	if err := r.write(ctx, abi.RegWrite{Offset: abi.RegControl, Width: 4, Value: uint64(c)}); err != nil {
		return err
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		state, err := r.state(ctx)
		switch {
		case err != nil:
			return err
		case state == want:
			return nil
		case state == abi.StateError:
			fault, err := r.read(ctx, abi.RegFault, 4)
			if err != nil {
				return err
			}
			return fmt.Errorf("%s: %w", c, &FaultError{abi.Fault(fault), "the function went to ERROR"})
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return fmt.Errorf("%s: the function stays in %s: %w", c, state, ctx.Err())
		}
	}
}

// identify reads the description of the function from its registers.
func (r registers) identify(ctx context.Context, info *Info) error {
	var function, kind, mac, tenant, mtu, speed, hi, lo uint64
	for _, f := range []struct {
		offset, width uint32
		v             *uint64
	}{
		{abi.RegFunction, 4, &function},
		{abi.RegFunctionType, 4, &kind},
		{abi.RegMAC, 8, &mac},
		{abi.RegTenant, 4, &tenant},
		{abi.RegMTU, 4, &mtu},
		{abi.RegSpeed, 4, &speed},
		{abi.RegGIDHi, 8, &hi},
		{abi.RegGIDLo, 8, &lo},
	} {
		var err error
		if *f.v, err = r.read(ctx, f.offset, f.width); err != nil {
			return err
		}
	}
	info.Function = FunctionID(function)
	info.Type = abi.FunctionType(kind)
	info.MAC = binary.LittleEndian.AppendUint64(nil, mac)[:6]
	info.Tenant = uint32(tenant)
	info.MTU, info.Speed = int(mtu), uint32(speed)
	binary.BigEndian.PutUint64(info.GID[:8], hi)
	binary.BigEndian.PutUint64(info.GID[8:], lo)
	return nil
}

// state returns the function's state.
func (r registers) state(ctx context.Context) (abi.State, error) {
	v, err := r.read(ctx, abi.RegState, 4)
	return abi.State(v), err
}

// read reads a register of so many bytes.
func (r registers) read(ctx context.Context, offset, width uint32) (uint64, error) {
	return r.access(ctx, &abi.RegRead{Offset: offset, Width: width}, "read", offset)
}

// write writes a register.
func (r registers) write(ctx context.Context, w abi.RegWrite) error {
	_, err := r.access(ctx, &w, "write", w.Offset)
	return err
}

// access reads or writes a register. Its errors name the register.
func (r registers) access(ctx context.Context, m abi.Message, verb string, offset uint32) (uint64, error) {
	body, err := r.s.call(ctx, m)
	if err != nil {
		return 0, err
	}
	var reply abi.RegReply
	if err := abi.Decode(body, &reply); err != nil {
		return 0, protocolError("%v", err)
	}
	if reply.Status != abi.StatusOK {
		name := fmt.Sprintf("%#x", offset)
		if known := abi.LookupRegister(offset); known != nil {
			name = known.Name
		}
		return 0, &StatusError{Op: verb + " of register " + name, Status: reply.Status}
	}
	return reply.Value, nil
}

// window reads the function's DMA window; a length of 0 means all memory. It needs no admin queue.
func (r registers) window(ctx context.Context) (w Range, err error) {
	if w.Address, err = r.read(ctx, abi.RegDMAWindow, 8); err == nil {
		w.Length, err = r.read(ctx, abi.RegDMAWindowLength, 8)
	}
	return w, err
}

// outside adds an explanation to err if the device refused pages because it has no memory there.
func (r registers) outside(ctx context.Context, err error, pages []uint64) error {
	var refused *StatusError
	if !errors.As(err, &refused) || refused.Status != abi.StatusMemoryFault {
		return err
	}
	w, werr := r.window(ctx)
	if werr != nil || w.Length == 0 {
		return err
	}
	for _, p := range pages {
		if !w.contains(p) {
			return fmt.Errorf("%w: the page at %#x lies outside the function's DMA window %s; have the PF or the host widen it", err, p, w)
		}
	}
	return err
}
