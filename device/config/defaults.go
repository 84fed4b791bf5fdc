package config

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/internal/tape"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/rdma/roce/cc"
	"github.com/falcon-vnic/vnic/rdma/rof/wire"
)

// Defaults, all in one place. docs/configuration.md shows them.
const (
	DefaultUplinkMTU    = 9000
	DefaultSocketMTU    = 1500 // of an uplink over UDP: what any network carries
	DefaultUplinkSpeed  = Rate(100e9)
	DefaultRDMAMTU      = 8192 // where it fits
	DefaultVFCount      = 4
	DefaultReplayMargin = time.Second
	DefaultRotateEvery  = 24 * time.Hour
	DefaultSpin         = 200 * time.Microsecond
	DefaultWatchdog     = time.Second
	DefaultVsockPort    = 7000
	DefaultGuestMemory  = Size(4 << 40)
	DefaultRecorder     = Size(64 << 20)
)

var defaultLimits = Limits{Quotas: defaultQuotas(), QPEntries: 4096, CQEntries: 1 << 18, ReadAtomic: 64, PageLists: 64 << 20}

var defaultCredits = Credits{
	RequestPacketTx: 1024, RequestBufferTx: 16384,
	RequestPacketRx: 1024, RequestBufferRx: 65536,
	DataPacketTx: 1024, DataBufferTx: 65536,
	NetworkPacketRx: 16384, NetworkBufferRx: 2048,
}

// defaultNICCredits is the amount for which this program has memory.
var defaultNICCredits = Credits{
	RequestPacketTx: 65536, RequestBufferTx: 1 << 20,
	RequestPacketRx: 65536, RequestBufferRx: 1 << 22,
	DataPacketTx: 65536, DataBufferTx: 1 << 22,
	NetworkPacketRx: 65536, NetworkBufferRx: 4096,
}

func (c *Config) setDefaults() {
	if c.CM.Name != "" {
		set(&c.NIC.Host, 1)
	}
	set(&c.CM.Name, strconv.Itoa(int(c.NIC.Host)))
	if _, ok := number(c.CM.Name); ok {
		set(&c.NIC.Name, "nic"+c.CM.Name)
	}
	set(&c.NIC.Name, c.CM.Name)
	for i := range c.Peers {
		c.Peers[i].Complete()
	}
	set(&c.NIC.Shards, defaultShards())
	set(&c.NIC.GuestMemory, DefaultGuestMemory)
	if r := c.NIC.Recorder; r != nil {
		set(&r.Size, DefaultRecorder)
		set(&r.Payload, tape.Digest.String())
	}
	set(&c.Log.Level, "info")
	set(&c.Log.Format, LogText)
	c.Uplink.setDefaults(c.CM.Name)
	set(&c.PSP.Mode, PSPTunnel)
	set(&c.RDMA.MTU, max(wire.SegmentFor(min(c.RDMADataFor(c.Uplink.MTU), DefaultRDMAMTU)), wire.MinSegment))
	set(&c.RDMA.Transport, TransportAuto)
	set(&c.RDMA.Congestion, cc.Default)
	set(&c.Falcon.Profile, ProfileSoftware)
	set(&c.PSP.ReplayMargin, DefaultReplayMargin)
	if c.RDMA.CRC == nil {
		on := true
		c.RDMA.CRC = &on
	}
	if c.NIC.Spin == nil {
		spin := DefaultSpin
		c.NIC.Spin = &spin
	}
	if c.NIC.Watchdog == nil {
		limit := DefaultWatchdog
		c.NIC.Watchdog = &limit
	}
	if c.PSP.RotateEvery == nil {
		every := DefaultRotateEvery
		c.PSP.RotateEvery = &every
	}
	c.Credits.NIC.setDefaults(&defaultNICCredits)
	c.Credits.Host.setDefaults(&c.Credits.NIC)
	if len(c.Functions) == 0 {
		c.Functions = []PF{{}}
	}
	for i := range c.Functions {
		pf := &c.Functions[i]
		highest := DefaultVFCount
		for j := range pf.VFs {
			highest = max(highest, int(pf.VFs[j].VF))
		}
		set(&pf.VFCount, min(highest, maxVF))
		pf.Function.setDefaults(c.CM.Name, pf.PF, 0)
		for j := range pf.VFs {
			vf := &pf.VFs[j]
			vf.Function.setDefaults(c.CM.Name, pf.PF, vf.VF)
		}
	}
	c.SetPortDefaults()
	for i := range c.Attach {
		a := &c.Attach[i]
		switch a.Type {
		case AttachUnix:
			base := filepath.Base(a.Socket)
			set(&a.Name, strings.TrimSuffix(base, filepath.Ext(base)))
		case AttachVsock:
			set(&a.Port, DefaultVsockPort)
		case AttachVfioUser:
			if a.PCI == nil {
				a.PCI = &PCI{}
			}
			a.PCI.setDefaults()
		}
	}
	if c.Capture != nil {
		set(&c.Capture.Mode, CaptureSealed)
	}
}

func (p *PCI) setDefaults() {
	vendor, device := DefaultPCIVendor, DefaultPCIDevice
	p.Vendor, p.Device = cmp.Or(p.Vendor, &vendor), cmp.Or(p.Device, &device)
	p.SubsystemVendor, p.SubsystemDevice = cmp.Or(p.SubsystemVendor, p.Vendor), cmp.Or(p.SubsystemDevice, p.Device)
	set(&p.Interrupts, PCIMSIX)
}

func defaultQuotas() (q Quotas) {
	for k := range abi.NumObjects {
		*q.Of(k) = k.Info().Initial
	}
	return q
}

func (f *Function) setDefaults(nic string, pf uint8, vf uint16) {
	if f.MAC.IsZero() {
		f.MAC = FunctionMAC(nic, pf, vf)
	}
	l, d := &f.Limits, defaultLimits
	for k := range abi.NumObjects {
		set(l.Quotas.Of(k), *d.Quotas.Of(k))
	}
	set(&l.QPEntries, d.QPEntries)
	set(&l.CQEntries, d.CQEntries)
	set(&l.ReadAtomic, d.ReadAtomic)
	set(&l.PageLists, d.PageLists)
	f.Credits.setDefaults(&defaultCredits)
	if f.Enabled == nil {
		f.Enabled = ptr(f.Tenant != 0)
	}
	if f.SpoofCheck == nil {
		f.SpoofCheck = ptr(true)
	}
}

// DefaultVF returns a VF that the configuration does not describe.
func (c *Config) DefaultVF(pf uint8, vf uint16) (f Function) {
	f.setDefaults(c.CM.Name, pf, vf)
	return f
}

func (c *Credits) setDefaults(d *Credits) {
	to, from := c.each(), d.each()
	for i := range to {
		set(to[i].value, *from[i].value)
	}
}

// SetPortDefaults sets the defaults of all ports. Parse does so; code that adds ports later must
// call it again.
func (c *Config) SetPortDefaults() {
	for _, f := range c.AllFunctions() {
		c.setPortDefaults(f)
	}
}

// SetPortDefaults sets the defaults of one function's port.
func (f NamedFunction) SetPortDefaults(c *Config) { c.setPortDefaults(f) }

func (c *Config) setPortDefaults(f NamedFunction) {
	p := f.Port
	if p == nil {
		return
	}
	set(&p.Type, PortTAP)
	set(&p.MTU, c.Uplink.MTU-c.SealedOverhead())
	if p.Assign == nil {
		p.Assign = ptr(true)
	}
	if p.Type == PortVhostUser {
		set(&p.Name, f.String())
		set(&p.Queues, 1)
		set(&p.Listen, ListenNIC)
		return
	}
	set(&p.Mode, PortDirect)
	if p.MAC.IsZero() {
		p.MAC = f.MAC
		if p.Mode == PortBridged {
			p.MAC = DevicePortMAC(c.CM.Name, f.PF, f.VF)
		}
	}
}
