package shard

import (
	"fmt"

	"github.com/falcon-vnic/vnic/device/guest"
	pfvf "github.com/falcon-vnic/vnic/pf_vf"
	"github.com/falcon-vnic/vnic/queues"
	"github.com/falcon-vnic/vnic/queues/abi"
)

// Attach gives a driver the function that its hello asks for, or returns the reason why not.
func (s *Shard) Attach(b *guest.Binding, number uint32) (*guest.Device, abi.Status, string) {
	f, st, why := s.funcs.choose(number, b.Attached, b.Peer)
	if st != abi.StatusOK {
		return nil, st, why
	}
	b.Memory = queues.NewWindowed(f.Settings().Window, nil)
	if st = f.Attach(b); st == abi.StatusBusy {
		why = takenBy(f.ID, f.Driver())
	}
	return f.Device, st, why
}

// linuxDriver is the name that the driver of guestlib/linux gives itself.
const linuxDriver = "vnic.ko"

// takenBy says which driver has a function.
func takenBy(id pfvf.ID, by *guest.Binding) string {
	has := fmt.Sprintf("%s is attached to %s", id, guest.Name(by.Peer))
	switch by.Driver {
	case "":
		return has
	case linuxDriver:
		return has + ", whose kernel driver has it (vnic.ko): rmmod vnic there"
	}
	return fmt.Sprintf("%s by %q", has, by.Driver)
}

// Assigned returns the first free function that is assigned to a guest, 0 if there is none. It is
// called on the shard's thread.
func (s *Shard) Assigned(attachment string, p queues.Identity) pfvf.ID {
	f, st, _ := s.funcs.choose(abi.FunctionAssigned, attachment, p)
	if st != abi.StatusOK || f.Driver() != nil {
		return 0
	}
	return f.ID
}

// choose returns the function that a guest asks for, if it is assigned to that guest. Host 0 in the
// number means this NIC, as a guest need not know its number.
func (fs *functionSet) choose(number uint32, attach string, p queues.Identity) (*member, abi.Status, string) {
	if number != abi.FunctionAssigned {
		id := pfvf.ID(number)
		if number <= pfvf.MaxID && id.Host() == 0 {
			id |= pfvf.ID(fs.cfg.NIC.Host) << 16
		}
		f := fs.members.get(id)
		switch {
		case f == nil && fs.possible(id):
			return nil, abi.StatusDenied, fmt.Sprintf("function %s is disabled", id)
		case f == nil:
			return nil, abi.StatusNotFound, fmt.Sprintf("there is no function %s", id)
		case !f.assignedTo(attach, p):
			return nil, abi.StatusDenied, fmt.Sprintf("function %s is not assigned to %s on %s", id, guest.Name(p), attach)
		}
		return f, abi.StatusOK, ""
	}
	var own *member
	for f := range fs.members.all() {
		if !f.assignedTo(attach, p) {
			continue
		}
		if f.Driver() == nil {
			return f, abi.StatusOK, ""
		}
		own = f
	}
	if own == nil {
		return nil, abi.StatusDenied, fmt.Sprintf("no function is assigned to %s on %s", guest.Name(p), attach)
	}
	return own, abi.StatusOK, "" // busy, which Attach reports
}

// assignedTo reports whether the configuration gives the function to this guest: by its CID, which
// the transport vouches for, or by the name of the unix attachment that it came through. A function
// with a service is the NIC's own.
func (f *member) assignedTo(attach string, p queues.Identity) bool {
	g := f.cfg.Guest
	switch {
	case p.Transport == queues.InProcess:
		return f.cfg.Service != ""
	case g == nil:
		return false
	case g.Unix != "":
		return p.CID == 0 && g.Unix == attach
	}
	return p.CID != 0 && g.CID == p.CID
}
