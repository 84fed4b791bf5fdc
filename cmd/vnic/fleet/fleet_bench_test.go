package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/falcon-vnic/vnic/cmd/vnic/vnictest"
	"github.com/falcon-vnic/vnic/device/cmlink"
	"github.com/falcon-vnic/vnic/device/directory"
	"github.com/falcon-vnic/vnic/device/directory/etcd"
	"github.com/falcon-vnic/vnic/guestlib"
)

// The benchmarks of the fleet measure one thing that takes seconds, and report it; ns/op says nothing.

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// BenchmarkFleetMesh: 32 NICs start at once; how long until every one has links to all others, and what that
// takes of the processors, by all NICs.
func BenchmarkFleetMesh(b *testing.B) {
	inFleet(b, 0, func(w *hostsOf) {
		w.routed = true
		for range 32 {
			h := w.newHost()
			h.keys = w.joins(h.name, "1:"+h.address())
			h.configure(h.port())
		}
		began := time.Now()
		for _, h := range w.hosts {
			h.launch()
		}
		w.meet()
		took := time.Since(began)
		w.end()
		var used time.Duration // with that of the workers, which the NICs' processes waited for
		for _, h := range w.hosts {
			used += h.p.Cmd.ProcessState.UserTime() + h.p.Cmd.ProcessState.SystemTime()
		}
		b.ReportMetric(took.Seconds(), "fleet/mesh32_s")
		b.ReportMetric(used.Seconds(), "fleet/mesh32_cpu_s")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkFleetJoin: a host with a token joins, its NIC starts, and its guest gets a first byte from a
// guest of the fleet.
func BenchmarkFleetJoin(b *testing.B) {
	inFleet(b, 1, func(w *hostsOf) {
		a := w.hosts[0]
		a.start()
		a.owns()
		a.echo()
		h := w.newHost()
		token := w.grants(h.name, "1:"+h.address())
		began := time.Now()
		h.keys = filepath.Join(filepath.Dir(token), "keys")
		w.must("join", "--token", token, "--dir", h.keys)
		h.configure(h.port())
		h.start()
		h.owns()
		var took time.Duration
		vnictest.Eventually(b, "a first byte", func() error {
			var c net.Conn
			if err := h.guest.Do(func() (err error) { c, err = net.Dial("udp", a.address()+":7"); return err }); err != nil {
				return err
			}
			defer c.Close()
			for range 50 {
				_ = c.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
				_, _ = c.Write([]byte{1})
				if _, err := c.Read(make([]byte, 1)); err == nil {
					took = time.Since(began)
					return nil
				}
			}
			return fmt.Errorf("no answer")
		})
		b.ReportMetric(milliseconds(took), "fleet/join_to_first_byte_ms")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkFleetMove: a function moves to and fro ten times while another guest sends it a datagram each
// millisecond; the longest time without an answer.
func BenchmarkFleetMove(b *testing.B) {
	inFleet(b, 3, func(w *hostsOf) {
		a, to, c := w.hosts[0], w.hosts[1], w.hosts[2]
		a.roams(to)
		w.start()
		c.owns()
		a.echo()
		s := c.talks(a)
		var worst time.Duration
		for i := range 10 {
			at := 2 - i%2
			stop := c.probes(a)
			w.must("move", "1:"+a.address(), w.hosts[at-1].name, "--as", fmt.Sprintf("pf0.vf%d", at), "--wait", vnictest.Limit.String(), "--set", fmt.Sprintf("port=name=port%d,mode=bridged,bridge=gbr", at))
			s.goesOn(b)
			outage := stop()
			b.Logf("outage: %v", outage)
			worst = max(worst, outage)
		}
		s.end(b)
		b.ReportMetric(milliseconds(worst), "fleet/move_outage_ms")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkFleetConnect: RDMA connections between functions of two hosts, set up one after the other.
func BenchmarkFleetConnect(b *testing.B) {
	inFleet(b, 2, func(w *hostsOf) {
		w.start()
		const service, count = 7, 200
		server, client := w.hosts[0].opens("pf0.vf1"), w.hosts[1].opens("pf0.vf1")
		gid, err := guestlib.ParseGID(w.hosts[0].address())
		if err != nil {
			b.Fatal(err)
		}
		ctx := w.ctx()
		l, err := server.Dev.Listen(ctx, service)
		if err != nil {
			b.Fatal(err)
		}
		var own, others []*guestlib.QP
		for range count {
			x, err := server.QP(ctx)
			if err != nil {
				b.Fatal(err)
			}
			y, err := client.QP(ctx)
			if err != nil {
				b.Fatal(err)
			}
			own, others = append(own, x), append(others, y)
		}
		accepted := make(chan error, 1)
		began := time.Now()
		go func() {
			for _, qp := range own {
				if err := server.Accept(ctx, l, qp); err != nil {
					accepted <- err
					return
				}
			}
			accepted <- nil
		}()
		for _, qp := range others {
			if _, err := client.Connect(ctx, qp, gid, service); err != nil {
				b.Fatal(err)
			}
		}
		took := time.Since(began)
		if err := <-accepted; err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(count/took.Seconds(), "fleet/connect_per_s")
		b.ReportMetric(0, "ns/op")
	})
}

// BenchmarkFleetWatch: what it takes of a processor to watch a fleet of a thousand hosts in which nothing
// changes, with the host's own record kept.
func BenchmarkFleetWatch(b *testing.B) {
	w := newWorld(b)
	w.signs(hostLife)
	keys := w.joins("a", "1")
	root, err := w.dial(userRoot)
	if err != nil {
		b.Fatal(err)
	}
	defer root.Close()
	const hosts = 1000
	for i := range hosts {
		var ops []clientv3.Op
		name := fmt.Sprint("h", i)
		g := directory.Grant{}
		g.Add(directory.Address{Tenant: uint32(i + 2)})
		h := directory.Host{Underlay: fmt.Sprintf("10.9.%d.%d:1000", i>>8, i&255), CM: fmt.Sprintf("10.9.%d.%d:7471", i>>8, i&255), Functions: []directory.Function{}}
		ops = append(ops, clientv3.OpPut(directory.GrantKey(w.is.Prefix, name), directory.Encode(g)), clientv3.OpPut(directory.HostKey(w.is.Prefix, name), directory.Encode(h)))
		if _, err := root.Txn(w.ctx()).Then(ops...).Commit(); err != nil {
			b.Fatal(err)
		}
	}
	id, err := cmlink.Load(keys, "a")
	if err != nil {
		b.Fatal(err)
	}
	c := etcd.New(etcd.Config{Endpoints: w.is.Endpoints, Prefix: w.is.Prefix, Name: "a", TLS: func() *tls.Config { return etcd.TLS(id.TLSCertificate(), id.Roots()) }})
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = c.Run(ctx) })
	defer done.Wait()
	defer cancel()
	c.Record(ctx, directory.Host{Instance: "x", Underlay: "10.9.255.1:1000", CM: "10.9.255.1:7471", Functions: []directory.Function{}})
	vnictest.Eventually(b, "the fleet", func() error {
		seen := 0
		c.Look(ctx, func(v *directory.View) { seen = len(v.Names()) })
		if st := c.Status(); seen != hosts+1 || !st.Watching || st.Keeping != "" {
			return fmt.Errorf("%d hosts, %+v", seen, st)
		}
		return nil
	})
	const quiet = 20 * time.Second // more than a turn of the lease
	before := processorTime(b)
	time.Sleep(quiet)
	b.ReportMetric(float64(processorTime(b)-before)/float64(quiet), "fleet/watch_cpu_1000_hosts")
	b.ReportMetric(0, "ns/op")
}

// processorTime returns what this process has used so far. etcd is another one.
func processorTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
