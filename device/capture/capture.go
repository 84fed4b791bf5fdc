package capture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// Direction of a packet, seen from the NIC.
type Direction uint8

// Directions.
const (
	In Direction = iota + 1
	Out
)

// Interfaces of a capture.
const (
	Sealed = 0 // Ethernet frames as on the wire
	Clear  = 1 // IP packets without seal
	ifaces = 2
)

const (
	slots   = 4096       // packets queued at most
	snapLen = 1<<16 + 32 // bytes kept of a frame: all of a superframe
)

// Capture is a pcapng file being written.
type Capture struct {
	free, queue chan *record
	file        io.Closer // nil: not ours to close
	w           *pcapgo.NgWriter
	done        chan struct{}
	failed      chan struct{} // closed at the first error of writing
	err         error         // of the writer; read after done is closed

	mu     sync.RWMutex // held shared by Packet, so that Close can wait for it
	closed bool

	dropped [ifaces]atomic.Uint64
	written [ifaces]uint64
}

// record is one queued packet. Its memory is used again.
type record struct {
	iface   int
	dir     Direction
	ts      int64
	length  int // on the wire
	data    []byte
	comment string
}

// Create makes a new file with mode 0600. A file already there is an error:
// captures are evidence.
func Create(path string) (*Capture, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		if errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("capture: %s exists and is not overwritten: remove it or choose another name", path)
		}
		return nil, fmt.Errorf("capture: %w", err)
	}
	c, err := New(f)
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	c.file = f
	return c, nil
}

// New writes a capture to w. Close does not close w.
func New(w io.Writer) (*Capture, error) {
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "vnic"}}
	ng, err := pcapgo.NewNgWriterInterface(w, pcapgo.NgInterface{
		Name: "sealed", Description: "uplink: Ethernet frames as on the wire", LinkType: layers.LinkTypeEthernet, SnapLength: snapLen,
	}, options)
	if err == nil {
		_, err = ng.AddInterface(pcapgo.NgInterface{
			Name: "clear", Description: "inner IP packets before sealing and after opening", LinkType: layers.LinkTypeRaw, SnapLength: snapLen,
		})
	}
	if err == nil {
		err = ng.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	c := &Capture{free: make(chan *record, slots), queue: make(chan *record, slots), w: ng, done: make(chan struct{}), failed: make(chan struct{})}
	records := make([]record, slots)
	for i := range records {
		c.free <- &records[i]
	}
	go c.run()
	return c, nil
}

// Packet queues a copy of a frame. ts is in nanoseconds since 1970 UTC. comment
// may be "". After Close and on a nil Capture it does nothing.
func (c *Capture) Packet(iface int, dir Direction, ts int64, frame []byte, comment string) {
	if c == nil || iface < 0 || iface >= ifaces {
		return
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed {
		return
	}
	select {
	case r := <-c.free:
		r.iface, r.dir, r.ts, r.length, r.comment = iface, dir, ts, len(frame), comment
		r.data = append(r.data[:0], frame[:min(len(frame), snapLen)]...)
		c.queue <- r // has as many places as there are records
	default:
		c.dropped[iface].Add(1)
	}
}

// Drops is the number of packets dropped because the writer did not keep up.
func (c *Capture) Drops() uint64 {
	if c == nil {
		return 0
	}
	return c.dropped[Sealed].Load() + c.dropped[Clear].Load()
}

// Failed returns a channel that is closed when writing has failed: nothing more is
// written.
func (c *Capture) Failed() <-chan struct{} { return c.failed }

// Close writes what is queued and the statistics, and closes the file. It
// returns the first error of writing.
func (c *Capture) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	again := c.closed
	c.closed = true
	if !again {
		close(c.queue)
	}
	c.mu.Unlock()
	<-c.done
	if again {
		return nil
	}
	err := c.err
	if c.file != nil {
		err = errors.Join(err, c.file.Close())
	}
	if err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

// run writes until the queue is closed. After an error it only counts.
func (c *Capture) run() {
	defer close(c.done)
	failed := false
	for r := range c.queue {
		if c.err == nil {
			c.err = c.write(r)
		} else {
			c.dropped[r.iface].Add(1)
		}
		if c.err == nil && len(c.queue) == 0 {
			c.err = c.w.Flush() // so that the file can be followed
		}
		if c.err != nil && !failed {
			failed = true
			close(c.failed)
		}
		c.free <- r
	}
	if c.err == nil {
		c.err = c.finish()
	}
}

// write and finish belong to run.
func (c *Capture) write(r *record) error {
	c.written[r.iface]++
	ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, r.ts), CaptureLength: len(r.data), Length: r.length, InterfaceIndex: r.iface}
	var o pcapgo.NgPacketOptions
	switch r.dir {
	case In:
		o.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}
	case Out:
		o.Flags = &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}
	}
	if r.comment != "" {
		o.Comments = []string{r.comment}
	}
	return c.w.WritePacketWithOptions(ci, r.data, o)
}

func (c *Capture) finish() error {
	for i := range ifaces {
		s := pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Now(), PacketsDropped: c.dropped[i].Load(), PacketsReceived: c.written[i] + c.dropped[i].Load(),
		}
		if err := c.w.WriteInterfaceStats(i, s); err != nil {
			return err
		}
	}
	return c.w.Flush()
}
