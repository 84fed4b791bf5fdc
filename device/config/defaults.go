package config

import (
	"fmt"
	"path/filepath"
	"strings"
	"time"
)

// Defaults, one place. docs/vnic.example.yaml repeats them for people.
const (
	DefaultUplinkMTU    = 9000
	DefaultRDMAMTU      = 4096
	DefaultVFCount      = 4
	DefaultReplayMargin = time.Second
	DefaultRotateEvery  = 24 * time.Hour
	DefaultVsockPort    = 7000
)

var defaultLimits = Limits{QP: 256, CQ: 512, MR: 4096, PD: 256, QPEntries: 4096, CQEntries: 65536, ReadAtomic: 16, PageLists: 64 << 20}

var defaultCredits = Credits{
	RequestPacketTx: 1024, RequestBufferTx: 16384,
	RequestPacketRx: 1024, RequestBufferRx: 65536,
	DataPacketTx: 1024, DataBufferTx: 65536,
}

func (c *Config) setDefaults() {
	set(&c.NIC.Name, fmt.Sprintf("nic%d", c.NIC.Host))
	set(&c.Log.Level, "info")
	set(&c.Uplink.Backend, BackendNative)
	set(&c.Uplink.MTU, DefaultUplinkMTU)
	set(&c.Uplink.Superframes, SuperframesAuto)
	c.Uplink.Impair.RX.setDefaults()
	c.Uplink.Impair.TX.setDefaults()
	if c.Uplink.Backend == BackendMemory {
		set(&c.Uplink.Name, "uplink")
	}
	if c.Uplink.MAC.IsZero() {
		c.Uplink.MAC = UplinkMAC(c.NIC.Host)
	}
	set(&c.RDMA.MTU, DefaultRDMAMTU)
	set(&c.Falcon.Profile, ProfileSoftware)
	set(&c.PSP.ReplayMargin, DefaultReplayMargin)
	if c.PSP.RotateEvery == nil {
		every := DefaultRotateEvery
		c.PSP.RotateEvery = &every
	}
	if len(c.Functions) == 0 {
		c.Functions = []PF{{}}
	}
	for i := range c.Functions {
		pf := &c.Functions[i]
		set(&pf.VFCount, max(DefaultVFCount, len(pf.VFs)))
		pf.addUnlistedVFs()
		pf.Function.setDefaults(c.NIC.Host, pf.PF, 0)
		for j := range pf.VFs {
			vf := &pf.VFs[j]
			vf.Function.setDefaults(c.NIC.Host, pf.PF, vf.VF)
		}
	}
	for _, f := range c.AllFunctions() {
		c.setPortDefaults(f)
	}
	for i := range c.Attach {
		a := &c.Attach[i]
		switch a.Type {
		case AttachUnix:
			base := filepath.Base(a.Socket)
			set(&a.Name, strings.TrimSuffix(base, filepath.Ext(base)))
		case AttachVsock:
			set(&a.Port, DefaultVsockPort)
		}
	}
	if c.Capture != nil {
		set(&c.Capture.Mode, CaptureSealed)
	}
}

// addUnlistedVFs appends the VFs that exist without being described: they can
// be seen, and assigned by a later configuration, but nobody drives them.
func (pf *PF) addUnlistedVFs() {
	listed := map[uint16]bool{}
	for _, vf := range pf.VFs {
		listed[vf.VF] = true
	}
	for n := uint16(1); len(pf.VFs) < min(pf.VFCount, maxVF) && n <= maxVF; n++ {
		if !listed[n] {
			pf.VFs = append(pf.VFs, VF{VF: n})
		}
	}
}

func (f *Function) setDefaults(host, pf uint8, vf uint16) {
	if f.MAC.IsZero() {
		f.MAC = FunctionMAC(host, pf, vf)
	}
	l, d := &f.Limits, defaultLimits
	set(&l.QP, d.QP)
	set(&l.CQ, d.CQ)
	set(&l.MR, d.MR)
	set(&l.PD, d.PD)
	set(&l.QPEntries, d.QPEntries)
	set(&l.CQEntries, d.CQEntries)
	set(&l.ReadAtomic, d.ReadAtomic)
	set(&l.PageLists, d.PageLists)
	c, k := &f.Credits, defaultCredits
	set(&c.RequestPacketTx, k.RequestPacketTx)
	set(&c.RequestBufferTx, k.RequestBufferTx)
	set(&c.RequestPacketRx, k.RequestPacketRx)
	set(&c.RequestBufferRx, k.RequestBufferRx)
	set(&c.DataPacketTx, k.DataPacketTx)
	set(&c.DataBufferTx, k.DataBufferTx)
}

func set[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
