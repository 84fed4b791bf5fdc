package perf

import (
	"fmt"
	"strings"
	"time"

	"github.com/falcon-vnic/vnic/guestlib"
)

// Op is the operation that a test measures.
type Op uint8

// Operations.
const (
	Write Op = iota
	Read
	Send
	Atomic
	Doorbell // perftest has no such test; see Doorbells
)

func (o Op) String() string { return [...]string{"write", "read", "send", "atomic", "doorbell"}[o] }

// Test is an operation, and whether its latency or its bandwidth is measured.
type Test struct {
	Op      Op
	Latency bool // false: bandwidth
}

// Tests lists the tests that perftest has, too.
func Tests() []Test {
	var all []Test
	for op := Write; op <= Atomic; op++ {
		all = append(all, Test{op, false}, Test{op, true})
	}
	return all
}

// String returns the name of perftest's program, without ib_.
func (t Test) String() string {
	if t.Op == Doorbell {
		return t.Op.String()
	}
	if t.Latency {
		return t.Op.String() + "_lat"
	}
	return t.Op.String() + "_bw"
}

// Title returns the heading of a report.
func (t Test) Title() string {
	what := map[Op]string{Write: "RDMA_Write", Read: "RDMA_Read", Send: "Send", Atomic: "Atomic"}[t.Op]
	if t.Latency {
		return what + " Latency Test"
	}
	return what + " BW Test"
}

// Config configures a measurement. Zero values stand for perftest's defaults.
type Config struct {
	Test
	URL     string       // of the device, as guestlib.Open takes it
	Peer    guestlib.GID // the server's function; zero: be the server
	Service uint64       // the service number of both sides; 0: 18515

	// The client decides these; a server adopts them.
	Size          int           // bytes; 0: 65536, for latency 2, for atomics 8
	All           bool          // all powers of two from 2 to Size, which is 8 MiB when 0
	Iterations    int           // per size and queue pair; 0: 5000, for latency 1000
	Duration      time.Duration // bandwidth only: how long to run, instead of Iterations
	QPs           int           // bandwidth only; 0: 1
	Bidirectional bool          // bandwidth of both directions at once
	CmpSwap       bool          // atomics: compare and swap instead of fetch and add
	Datagrams     bool          // SEND only: queue pairs of type UD instead of RC; sizes up to the path MTU

	// Each side has its own.
	TxDepth int           // sends outstanding on a queue pair; 0: 128, for latency 32
	RxDepth int           // receives outstanding on a queue pair; 0: 512
	CQMod   int           // number of sends for each completion; 0: 100, or TxDepth if that is less
	Inline  int           // messages up to this size are copied into the queue; -1: 220 for latency, else 0
	Outs    int           // READs and atomics in flight; 0: what the device allows
	MTU     int           // path MTU in bytes; 0: the device's
	Timeout int           // of the queue pair, 4.096 µs × 2^n; 0: the device's
	Path    guestlib.Path // traffic class and the like
	Events  bool          // sleep for completions instead of polling
	NoPeak  bool          // do not keep the times that BW peak needs
	Meet    time.Duration // how long to look for the peer; 0: 1 min

	// Waiting is called once when no server answers at first, with the reason.
	Waiting func(error)
	// Header is called once, when both sides agreed and before the first row.
	Header func(Header)
	// Row is called after each size.
	Row func(*Row)
}

// maxSize is the largest message in bytes.
const maxSize = 1 << 30

// maxDatagram is the largest datagram in bytes; a smaller path MTU limits it further.
const maxDatagram = 4096

// Header is the part of a report before its rows.
type Header struct {
	Test
	Device, Path  string
	Local, Remote guestlib.GID
	QPs           int
	TxDepth       int
	CQMod         int
	MTU, Inline   int
	Outs          int
	Events        bool
	Bidirectional bool
	Datagrams     bool
	Server        bool
	Perftest      string // version of perftest's program at the other end; "": this package
}

func (c *Config) client() bool { return c.Peer != guestlib.GID{} }

// check sets defaults and refuses what is impossible.
func (c *Config) check() error {
	if c.Op == Atomic && c.Size == 0 {
		c.Size = 8
	}
	def := func(v *int, bw, lat int) {
		if *v == 0 {
			*v = bw
			if c.Latency {
				*v = lat
			}
		}
	}
	if c.Datagrams {
		def(&c.Size, maxDatagram, 2)
		if c.All {
			c.Size = max(c.Size, maxDatagram)
		}
	}
	if c.All {
		def(&c.Size, 8<<20, 8<<20)
	}
	def(&c.Size, 65536, 2)
	def(&c.Iterations, 5000, 1000)
	def(&c.QPs, 1, 1)
	def(&c.TxDepth, 128, 32)
	def(&c.RxDepth, 512, 512)
	def(&c.CQMod, min(100, c.TxDepth), 1)
	if c.Inline < 0 {
		if c.Inline = 0; c.Latency {
			c.Inline = 220
		}
	}
	if c.Service == 0 {
		c.Service = 18515
	}
	if c.Meet == 0 {
		c.Meet = time.Minute
	}
	for _, v := range []struct {
		name          string
		v, least, max int
	}{
		{"size", c.Size, 1, maxSize},
		{"iterations", c.Iterations, 5, 1 << 27},
		{"queue pairs", c.QPs, 1, 4096},
		{"tx depth", c.TxDepth, 1, 1 << 15},
		{"rx depth", c.RxDepth, 1, 1 << 15},
		{"completions moderated by", c.CQMod, 1, c.TxDepth},
		{"outstanding reads", c.Outs, 0, 128},
		{"timeout", c.Timeout, 0, 31},
	} {
		if v.v < v.least || v.v > v.max {
			return fmt.Errorf("%s: %s: %d is out of range; use %d to %d", c.Test, v.name, v.v, v.least, v.max)
		}
	}
	var wrong []string
	refuse := func(bad bool, why string) {
		if bad {
			wrong = append(wrong, why)
		}
	}
	refuse(c.Latency && c.QPs > 1, "latency is measured on one queue pair")
	refuse(c.Latency && c.Duration > 0, "a duration is for bandwidth tests; use iterations")
	refuse(c.Latency && c.Bidirectional, "latency has no two directions")
	refuse(c.Duration < 0, "the duration is negative")
	refuse(c.Duration > 0 && c.All, "a duration is for one size; leave out --all")
	refuse(c.Op == Atomic && (c.Size != 8 || c.All), "atomics have 8 bytes")
	refuse(c.Datagrams && c.Op != Send, "datagrams are for SENDs")
	refuse(c.Datagrams && c.Size > maxDatagram, "a datagram carries one path MTU, at most 4096 bytes")
	refuse(c.CmpSwap && c.Op != Atomic, "compare and swap is for atomics")
	refuse(c.Events && c.Latency && c.Op == Write, "write_lat looks at memory, which sends no events")
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %s", c.Test, strings.Join(wrong, "; "))
	}
	return nil
}

// sizes returns the message size of each row.
func (c *Config) sizes() []int {
	if !c.All {
		return []int{c.Size}
	}
	var all []int
	for n := 2; n <= c.Size; n *= 2 {
		all = append(all, n)
	}
	return all
}
