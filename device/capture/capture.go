package capture

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/falcon-vnic/vnic/device/config"
)

// Direction of a packet, seen from the NIC.
type Direction uint8

// Directions.
const (
	In Direction = iota + 1
	Out
)

// Interfaces of a capture, as Packet takes them. Those of ports have the next numbers.
const (
	Sealed = 0 // Ethernet frames as on the wire
	Clear  = 1 // IP packets without seal
)

const (
	slots   = 4096       // maximum number of queued packets
	snapLen = 1<<16 + 32 // bytes kept of a frame: enough for a whole superframe
)

// iface is an interface of a capture.
type iface struct {
	name, description string
	link              layers.LinkType
	dropped           atomic.Uint64
	written           uint64 // used by run only
	id                int    // number in the file; used by run only
}

// undescribed is the id of an interface that is not in the file.
const undescribed = -1

// Capture is a pcapng file being written.
type Capture struct {
	free, queue chan *record
	file        io.Closer // nil: the caller closes it
	path        string
	w           *pcapgo.NgWriter
	done        chan struct{}
	failed      chan struct{} // closed at the first write error
	err         error         // write error; read after failed or done is closed

	mu     sync.RWMutex // read-locked by Packet, so that Close can wait for it
	closed bool
	ifaces []*iface
}

// record is a queued packet. Its memory is reused.
type record struct {
	iface   int
	dir     Direction
	ts      int64
	length  int // on the wire
	data    []byte
	comment string
}

// Create makes a new file with mode 0600. Captures are evidence, so an existing file is not
// changed: the new one gets a number, for example nic1.2.pcapng beside nic1.pcapng.
func Create(path, mode string) (*Capture, error) {
	f, err := createNext(path)
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	c, err := New(f, mode)
	if err != nil {
		return nil, errors.Join(err, f.Close(), os.Remove(f.Name())) // the file is empty
	}
	c.file, c.path = f, f.Name()
	return c, nil
}

// maxNumber bounds the search for a free name.
const maxNumber = 10_000

func createNext(path string) (*os.File, error) {
	ext := filepath.Ext(path)
	name := path
	for n := 2; ; n++ {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if !errors.Is(err, os.ErrExist) || n > maxNumber {
			return f, err
		}
		name = fmt.Sprintf("%s.%d%s", strings.TrimSuffix(path, ext), n, ext)
	}
}

// Path returns the file that Create made.
func (c *Capture) Path() string { return c.path }

// Port is an Ethernet port to be captured.
type Port struct{ Name, Description string }

func (f *iface) ng() pcapgo.NgInterface {
	return pcapgo.NgInterface{Name: f.name, Description: f.description, LinkType: f.link, SnapLength: snapLen}
}

// New writes a capture to w. The file begins with the interfaces of the mode and of ports; another
// one is added when its first packet comes. So a capture of ports alone has one type of interface,
// as tcpdump needs it. Close does not close w.
func New(w io.Writer, mode string, ports ...Port) (*Capture, error) {
	sealed := &iface{id: undescribed, name: "sealed", description: "uplink: Ethernet frames as on the wire", link: layers.LinkTypeEthernet}
	clear := &iface{id: undescribed, name: "clear", description: "inner IP packets before sealing and after opening", link: layers.LinkTypeRaw}
	all := []*iface{Sealed: sealed, Clear: clear}
	for _, p := range ports {
		all = append(all, portInterface(p))
	}
	var first []*iface
	sink := NewSink(nil, mode)
	if sink.Sealed {
		first = append(first, sealed)
	}
	if sink.Clear {
		first = append(first, clear)
	}
	if first = append(first, all[Clear+1:]...); len(first) == 0 {
		first = append(first, sealed) // a file has one at least
	}
	options := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "vnic"}}
	ng, err := pcapgo.NewNgWriterInterface(w, first[0].ng(), options)
	first[0].id = 0
	for _, f := range first[1:] {
		if err == nil {
			f.id, err = ng.AddInterface(f.ng())
		}
	}
	if err == nil {
		err = ng.Flush()
	}
	if err != nil {
		return nil, fmt.Errorf("capture: %w", err)
	}
	c := &Capture{free: make(chan *record, slots), queue: make(chan *record, slots), w: ng, done: make(chan struct{}), failed: make(chan struct{}), ifaces: all}
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
	c.Parts(iface, dir, ts, comment, frame)
}

// Parts is like Packet, for a frame in several parts.
func (c *Capture) Parts(iface int, dir Direction, ts int64, comment string, parts ...[]byte) {
	if c == nil || iface < 0 {
		return
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.closed || iface >= len(c.ifaces) {
		return
	}
	select {
	case r := <-c.free:
		r.iface, r.dir, r.ts, r.length, r.comment = iface, dir, ts, 0, comment
		r.data = r.data[:0]
		for _, b := range parts {
			r.length += len(b)
			r.data = append(r.data, b[:min(len(b), snapLen-len(r.data))]...)
		}
		c.queue <- r // never blocks: the queue has as many places as there are records
	default:
		c.ifaces[iface].dropped.Add(1)
	}
}

// AddPort adds an interface while the capture runs and returns its number.
func (c *Capture) AddPort(p Port) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ifaces = append(c.ifaces, portInterface(p))
	return len(c.ifaces) - 1
}

func portInterface(p Port) *iface {
	return &iface{id: undescribed, name: p.Name, description: p.Description, link: layers.LinkTypeEthernet}
}

// all returns the present interfaces.
func (c *Capture) all() []*iface {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.ifaces
}

// Drops returns the number of packets dropped because the writer was too slow.
func (c *Capture) Drops() uint64 {
	if c == nil {
		return 0
	}
	n := uint64(0)
	for _, f := range c.all() {
		n += f.dropped.Load()
	}
	return n
}

// Failed returns a channel that is closed when writing has failed. Nothing more is written then.
func (c *Capture) Failed() <-chan struct{} { return c.failed }

// Err returns why writing failed, once Failed is closed.
func (c *Capture) Err() error { return c.err }

// Close writes what is queued and the statistics, and closes the file. It returns the first write
// error.
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

// run writes packets until the queue is closed. After an error it only counts drops.
func (c *Capture) run() {
	defer close(c.done)
	failed := false
	for r := range c.queue {
		if c.err == nil {
			c.err = c.write(r)
		} else {
			c.all()[r.iface].dropped.Add(1)
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

// describe, write and finish are called by run only. describe adds an interface to the file.
func (c *Capture) describe(f *iface) (err error) {
	if f.id == undescribed {
		f.id, err = c.w.AddInterface(f.ng())
	}
	return err
}

func (c *Capture) write(r *record) error {
	f := c.all()[r.iface]
	if err := c.describe(f); err != nil {
		return err
	}
	f.written++
	ci := gopacket.CaptureInfo{Timestamp: time.Unix(0, r.ts), CaptureLength: len(r.data), Length: r.length, InterfaceIndex: f.id}
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
	for i, f := range c.all() {
		if i <= Clear && f.id == undescribed {
			continue
		}
		if err := c.describe(f); err != nil { // a port without packets
			return err
		}
		s := pcapgo.NgInterfaceStatistics{
			LastUpdate: time.Now(), PacketsDropped: f.dropped.Load(), PacketsReceived: f.written + f.dropped.Load(),
		}
		if err := c.w.WriteInterfaceStats(f.id, s); err != nil {
			return err
		}
	}
	return c.w.Flush()
}

// Sink is a capture and a selection of what it receives.
type Sink struct {
	To            *Capture
	Sealed, Clear bool
	Ports         map[Port]int // interfaces of the captured ports
	AnyPort       bool         // also capture ports that are added later
}

// NewSink returns the sink for a capture mode of the configuration; "" captures nothing.
func NewSink(to *Capture, mode string) Sink {
	return Sink{
		To:     to,
		Sealed: mode == config.CaptureSealed || mode == config.CaptureBoth,
		Clear:  mode == config.CaptureClear || mode == config.CaptureBoth,
	}
}

// NamedPort is a function's port with its other names: those of the function.
type NamedPort struct {
	Port
	Names []string
}
