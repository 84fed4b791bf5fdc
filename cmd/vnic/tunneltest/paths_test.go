package tunneltest_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/cmd/vnic/labkit"
	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/netns"
	"github.com/falcon-vnic/vnic/guestlib"
)

// twoWires joins hosts by two equal wires, among which the kernel chooses by addresses and ports, as
// routers do. The NICs' addresses are the hosts' own; the connection managers have a wire to
// themselves.
//
//	          ┌ wire0 ═ wire0 ┐
//	host 1 lo ┤               ├ lo host 2
//	          └ wire1 ═ wire1 ┘
type twoWires struct{ host *netns.Space }

const wiresMTU = 1500

func (*twoWires) cm(i int) string         { return fmt.Sprintf("10.96.9.%d", i+1) }
func (*twoWires) address(i int) string    { return fmt.Sprintf("10.95.0.%d", i+1) }
func (w *twoWires) underlay(i int) string { return at(w.address(i), 1000) }
func (*twoWires) nic() string             { return "" }
func (*twoWires) room() int               { return wiresMTU - 68 }

func (w *twoWires) uplink(i int) string {
	return fmt.Sprintf(`{type: udp, listen: "%s", mtu: %d}`, at(w.address(i), 1000), wiresMTU)
}

func (w *twoWires) wire(set func(netlink.Link) error) error {
	return w.host.Do(func() error { return onLink("wire0", set) })
}

func (w *twoWires) join(p *pairOfHosts) error {
	w.host = p.hosts[0]
	for name, net := range map[string]string{"wire0": "10.96.0", "wire1": "10.96.1", "cm": "10.96.9"} {
		err := w.host.Do(func() error {
			if err := labkit.Veth(name, name+"-2", wiresMTU); err != nil {
				return err
			}
			return errors.Join(netns.Up(name, net+".1/24"), p.hosts[1].Take(name+"-2", net+".2/24"))
		})
		if err != nil {
			return err
		}
	}
	for i, s := range p.hosts {
		if err := s.Do(func() error { return w.routes(i) }); err != nil {
			return err
		}
	}
	return nil
}

// routes gives a host its address, and both wires as ways to the other one, chosen by a hash of
// addresses and ports.
func (w *twoWires) routes(i int) error {
	if err := os.WriteFile("/proc/sys/net/ipv4/fib_multipath_hash_policy", []byte("1"), 0); err != nil {
		return err
	}
	if err := netns.Up("lo", w.address(i)+"/32"); err != nil {
		return err
	}
	var ways []*netlink.NexthopInfo
	for k := range 2 {
		l, err := netlink.LinkByName(fmt.Sprintf("wire%d%s", k, []string{"", "-2"}[i]))
		if err != nil {
			return err
		}
		ways = append(ways, &netlink.NexthopInfo{LinkIndex: l.Attrs().Index, Gw: net.ParseIP(fmt.Sprintf("10.96.%d.%d", k, 2-i))})
	}
	peer := &net.IPNet{IP: net.ParseIP(w.address(1 - i)), Mask: net.CIDRMask(32, 32)}
	return netlink.RouteAdd(&netlink.Route{Dst: peer, MultiPath: ways})
}

// carried returns the bytes that each wire has carried from the first host.
func (w *twoWires) carried() (bytes [2]uint64, err error) {
	err = w.host.Do(func() error {
		for k := range bytes {
			l, err := netlink.LinkByName(fmt.Sprintf("wire%d", k))
			if err != nil {
				return err
			}
			bytes[k] = l.Attrs().Statistics.TxBytes
		}
		return nil
	})
	return bytes, err
}

// congest makes a wire so slow from the first host that each packet waits for tens of milliseconds
// behind the one before, however few are under way.
func (w *twoWires) congest(wire int) error {
	const rate = 32_000 // bytes a second
	return w.host.Do(func() error {
		return onLink(fmt.Sprintf("wire%d", wire), func(l netlink.Link) error {
			return netlink.QdiscAdd(&netlink.Tbf{
				QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
				Rate:       rate, Limit: 1 << 20, Buffer: netlink.Xmittime(rate, 2*wiresMTU),
			})
		})
	})
}

// TestACongestedPathIsLeft: a connection over UDP whose way becomes congested moves to another source
// port, and so to another way of the network (PLB, Falcon §10.4), until one has room.
func TestACongestedPathIsLeft(t *testing.T) {
	vnictest.RequireRoot(t)
	netns.Run(t, func() {
		w := &twoWires{}
		p := newPairOfHosts(t, w)
		for i := range p.hosts { // the target is far above what a busy machine adds
			f, err := os.OpenFile(p.file("yaml", i), os.O_APPEND|os.O_WRONLY, 0)
			p.must(err)
			_, err = f.WriteString("falcon: {cc: {plb: true, max_fcwnd: 16, base_delay_target: 20ms}}\n")
			p.must(errors.Join(err, f.Close()))
		}
		p.start(0, 1)
		s := newWriter(t, [2]string{"unix://" + p.file("sock", 0), "unix://" + p.file("sock", 1)})
		t.Cleanup(s.close)
		before, err := w.carried()
		p.must(err)
		s.write(100, 1024, 32)
		after, err := w.carried()
		p.must(err)
		congested := 0
		if after[1]-before[1] > after[0]-before[0] {
			congested = 1
		}
		p.must(w.congest(congested))
		vnictest.Eventually(t, "the congested wire is left", func() error {
			before, err := w.carried()
			p.must(err)
			s.write(100, 1024, 32)
			after, err := w.carried()
			p.must(err)
			slow, other := after[congested]-before[congested], after[1-congested]-before[1-congested]
			if slow*4 > other {
				return fmt.Errorf("wire %d carried %d bytes more, the other one %d", congested, slow, other)
			}
			return nil
		})
		c, err := p.control(0).Counters(t.Context())
		p.must(err)
		if c["falcon.repaths"] == 0 {
			t.Error("no connection was moved to another path")
		}
	})
}

// writer writes from a client of one NIC to that of another. Its clients sleep while they wait.
type writer struct {
	t       testing.TB
	devices [2]*guestlib.Device
	cq      *guestlib.CQ
	qp      *guestlib.QP
	mr      [2]*guestlib.MR
}

// newWriter connects clients of two functions.
func newWriter(t testing.TB, urls [2]string) *writer {
	t.Helper()
	ctx := t.Context()
	w := &writer{t: t}
	var qps [2]*guestlib.QP
	for i := range w.devices {
		d, err := guestlib.Open(ctx, urls[i], guestlib.Options{Memory: 4 << 20})
		w.must(err)
		w.devices[i] = d
		pd, err := d.AllocPD(ctx)
		w.must(err)
		cq, err := d.CreateCQ(ctx, 256)
		w.must(err)
		buf, err := d.Alloc(1 << 20)
		w.must(err)
		const access = guestlib.LocalWrite | guestlib.RemoteWrite
		w.mr[i], err = pd.RegMR(ctx, buf, access)
		w.must(err)
		qps[i], err = pd.CreateQP(ctx, guestlib.QPConfig{SendCQ: cq, Access: access})
		w.must(err)
		if i == 0 {
			w.cq = cq
		}
	}
	w.qp = qps[0]
	l, err := w.devices[1].Listen(ctx, 1)
	w.must(err)
	accepted := make(chan error, 1)
	go func() {
		r, err := l.Accept(ctx)
		if err == nil {
			err = r.Accept(ctx, qps[1], nil)
		}
		accepted <- err
	}()
	_, err = w.devices[0].Connect(ctx, w.qp, w.devices[1].GID(), 1, nil)
	w.must(errors.Join(err, <-accepted))
	return w
}

func (w *writer) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) close() {
	for _, d := range w.devices {
		d.Close()
	}
}

// write writes size bytes n times, several at once.
func (w *writer) write(n, size, atOnce int) {
	w.t.Helper()
	wr := guestlib.SendWR{Opcode: guestlib.Write, Flags: guestlib.Signaled, SGL: []guestlib.SGE{w.mr[0].SGE(0, size)}, RemoteAddr: w.mr[1].Addr(), RKey: w.mr[1].RKey()}
	var wc [32]guestlib.WC
	for posted, done := 0, 0; done < n; {
		for ; posted < n && posted-done < atOnce; posted++ {
			w.must(w.qp.PostSend(&wr))
		}
		k, err := w.cq.Poll(wc[:])
		w.must(err)
		for i := range wc[:k] {
			w.must(wc[i].Err())
		}
		if done += k; k == 0 {
			w.must(w.cq.Wait(w.t.Context()))
		}
	}
}
