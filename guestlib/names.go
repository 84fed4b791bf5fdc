package guestlib

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/falcon-vnic/vnic/queues/abi"
)

// Types shared with the device.
type (
	// Opcode is the operation of a send work request.
	Opcode = abi.Opcode
	// WCOpcode is the operation a completion reports.
	WCOpcode = abi.WCOpcode
	// WCStatus is the outcome of a work request; the values of ibv_wc_status.
	WCStatus = abi.WCStatus
	// QPType is the type of a QP.
	QPType = abi.QPType
	// QPState is the state of a QP.
	QPState = abi.QPState
	// SGE names a piece of registered memory. MR.SGE makes one.
	SGE = abi.SGE
)

// GID is the address of a function in its tenant: an IPv6 address, or an IPv4-mapped IPv6 address.
type GID [16]byte

// ParseGID parses an IPv4 or IPv6 address.
func ParseGID(s string) (GID, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return GID{}, invalid("GID %q is not an IPv4 or IPv6 address", s)
	}
	return a.As16(), nil
}

// String returns the address, IPv4 in its short form.
func (g GID) String() string { return netip.AddrFrom16(g).Unmap().String() }

// FunctionID is the number of a function: host in bits 23:16, PF in bits 15:12, VF in bits 11:0,
// where VF 0 is the PF itself.
type FunctionID uint32

// AssignedFunction means the only function that is assigned to this guest.
const AssignedFunction FunctionID = abi.FunctionAssigned

// ParseFunctionID parses "h1.pf0.vf2", in which host and VF may be left out, or "" for the assigned
// function. Host 0, or no host, means the NIC to which the guest is attached.
func ParseFunctionID(s string) (FunctionID, error) {
	if s == "" {
		return AssignedFunction, nil
	}
	rest := s
	part := func(prefix string, bits int) (uint64, bool, error) {
		text, tail, _ := strings.Cut(rest, ".")
		digits, ok := strings.CutPrefix(text, prefix)
		if !ok {
			return 0, false, nil
		}
		rest = tail
		v, err := strconv.ParseUint(digits, 10, bits)
		return v, true, err
	}
	host, _, err := part("h", 8)
	pf, hasPF, err2 := part("pf", 4)
	vf, _, err3 := part("vf", 12)
	if err != nil || err2 != nil || err3 != nil || !hasPF || rest != "" || strings.HasSuffix(s, ".") {
		return 0, invalid("function %q; write it as pf0.vf2 or h1.pf0.vf2 (host 0–255, PF 0–15, VF 0–4095)", s)
	}
	return FunctionID(host<<16 | pf<<12 | vf), nil
}

// String returns the form that ParseFunctionID parses.
func (f FunctionID) String() string {
	if f == AssignedFunction {
		return "assigned"
	}
	name := fmt.Sprintf("pf%d.vf%d", f>>12&0xf, f&0xfff)
	if host := f >> 16 & 0xff; host != 0 { // 0 means the NIC to which the guest is attached
		name = fmt.Sprintf("h%d.%s", host, name)
	}
	return name
}
