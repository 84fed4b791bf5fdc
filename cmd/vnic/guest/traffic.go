package guest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/falcon-vnic/vnic/guestlib/workload"
)

// Traffic measures plain IP between the two guests: it gives the guest's Ethernet interface an
// address and runs iperf3 with the other guest, which does the same.
type Traffic struct {
	Address netip.Prefix // of this guest
	Peer    string       // address of the other
	Seconds int          // duration of each measurement
}

// protocols are measured one after the other.
var protocols = []string{"TCP", "UDP"}

// farewellPort is the TCP port on which a guest learns that the other guest has finished measuring.
const farewellPort = 5202

// patience is how long a guest that has finished tries to tell the other one.
const patience = 10 * time.Second

// Run measures towards the other guest, and serves that guest's measurements until it has finished
// too.
func (t *Traffic) Run(ctx context.Context, say func(workload.Output)) error {
	name, err := t.configure(ctx)
	if err != nil {
		return err
	}
	say(workload.Output{Kind: workload.KindProgress, Text: fmt.Sprintf("%s has address %s", name, t.Address)})
	ctx, cancel := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- t.serve(ctx) }()
	err = t.measureAll(ctx, say)
	if err != nil {
		cancel()
	}
	err = errors.Join(err, <-served)
	cancel()
	return err
}

func (t *Traffic) measureAll(ctx context.Context, say func(workload.Output)) error {
	for _, protocol := range protocols {
		s, err := t.measure(ctx, protocol, say)
		if err != nil {
			return err
		}
		say(workload.Output{Kind: workload.KindStream, Stream: &s})
	}
	tell(ctx, t.Peer, farewellPort)
	return nil
}

// serve runs iperf3's server until the other guest has finished. It cannot count the runs of iperf3
// instead, because a run also counts if its client gave up while it was connecting.
func (t *Traffic) serve(ctx context.Context) error {
	l, err := net.Listen("tcp", fmt.Sprintf(":%d", farewellPort))
	if err != nil {
		return err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	serving, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for serving.Err() == nil { // iperf3 exits after a few failures in a row
			_ = exec.CommandContext(serving, "iperf3", "-s").Run()
			sleep(serving, 100*time.Millisecond)
		}
	}()
	c, err := l.Accept()
	cancel()
	<-ended
	if err != nil {
		return fmt.Errorf("iperf3 server: %w before the other guest was done", cmp.Or(ctx.Err(), err))
	}
	return c.Close() // tells the other guest that its message arrived
}

// tell tells the other guest that this one has finished, by a TCP connection to port. It gives up
// after patience: then the other guest has got the message and stopped listening, but its answer
// was lost.
func tell(ctx context.Context, peer string, port int) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	d := net.Dialer{Timeout: time.Second}
	for ctx.Err() == nil {
		if c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(peer, fmt.Sprint(port))); err == nil {
			_ = c.SetDeadline(time.Now().Add(time.Second))
			_, err = c.Read(make([]byte, 1))
			_ = c.Close()
			if errors.Is(err, io.EOF) {
				return
			}
		}
		sleep(ctx, 100*time.Millisecond)
	}
}

// sleep waits until the time is over or ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// configure finds the Ethernet interface and gives it the address.
func (t *Traffic) configure(ctx context.Context) (name string, err error) {
	for {
		links, err := netlink.LinkList()
		if err != nil {
			return "", err
		}
		for _, l := range links {
			a := l.Attrs()
			if a.Flags&net.FlagLoopback != 0 || a.EncapType != "ether" || len(a.HardwareAddr) != 6 {
				continue
			}
			network := &net.IPNet{IP: t.Address.Addr().AsSlice(), Mask: net.CIDRMask(t.Address.Bits(), t.Address.Addr().BitLen())}
			if err := netlink.AddrReplace(l, &netlink.Addr{IPNet: network}); err != nil {
				return "", fmt.Errorf("%s: address %s: %w", a.Name, t.Address, err)
			}
			return a.Name, netlink.LinkSetUp(l)
		}
		select {
		case <-ctx.Done():
			return "", errors.New("the guest has no Ethernet interface")
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// iperfReport holds the fields of iperf3's report that are used.
type iperfReport struct {
	Error string `json:"error"`
	End   struct {
		Sent     iperfSum `json:"sum_sent"`
		Received iperfSum `json:"sum_received"`
		Sum      iperfSum `json:"sum"`
	} `json:"end"`
}

type iperfSum struct {
	Seconds       float64 `json:"seconds"`
	Bytes         int64   `json:"bytes"`
	BitsPerSecond float64 `json:"bits_per_second"`
	Retransmits   int     `json:"retransmits"`
	Packets       float64 `json:"packets"`
	LostPackets   float64 `json:"lost_packets"`
}

// iperfUDPRate is the UDP rate in bits per second. Emulated guests can send it besides RDMA.
const iperfUDPRate = "20M"

// measure runs iperf3's client again until it succeeds.
func (t *Traffic) measure(ctx context.Context, protocol string, say func(workload.Output)) (workload.Stream, error) {
	said := ""
	args := []string{"-J", "-c", t.Peer, "-t", fmt.Sprint(t.Seconds), "--connect-timeout", "1000"}
	if protocol == "UDP" {
		args = append(args, "-u", "-b", iperfUDPRate, "-l", "1400")
	}
	for {
		out, err := exec.CommandContext(ctx, "iperf3", args...).Output()
		var r iperfReport
		if e := json.Unmarshal(out, &r); e == nil && err == nil && r.Error == "" {
			return r.stream(protocol), nil
		}
		if why := fmt.Sprintf("iperf3 %s: %s (%v); trying again", protocol, r.Error, err); why != said {
			said = why
			say(workload.Output{Kind: workload.KindProgress, Text: why})
		}
		select {
		case <-ctx.Done():
			return workload.Stream{}, fmt.Errorf("iperf3 %s to %s: %s %w", protocol, t.Peer, r.Error, errors.Join(err, ctx.Err()))
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (r *iperfReport) stream(protocol string) workload.Stream {
	e := &r.End
	if protocol == "TCP" {
		return workload.Stream{Protocol: protocol, Seconds: e.Received.Seconds, Bytes: e.Received.Bytes, Mbps: e.Received.BitsPerSecond / 1e6, Resent: e.Sent.Retransmits}
	}
	s := workload.Stream{Protocol: protocol, Seconds: e.Sum.Seconds}
	if e.Sum.Packets > 0 {
		s.LostPct = 100 * e.Sum.LostPackets / e.Sum.Packets
		s.Bytes = int64(float64(e.Sum.Bytes) * (1 - s.LostPct/100))
		s.Mbps = float64(s.Bytes) * 8 / 1e6 / max(s.Seconds, 1e-9)
	}
	return s
}
