package conform

import (
	"net"

	"github.com/falcon-vnic/vnic/guestlib/arena"
	"github.com/falcon-vnic/vnic/queues/abi"
	"github.com/falcon-vnic/vnic/queues/ring"
)

// clientMemory is the memory that the device can access by one stream, in bytes.
const clientMemory = 16 << 20

// features are the features that the kit knows.
const features = abi.FeatureEventIndex | abi.FeatureExtendedVerbs | abi.FeatureDatagrams | abi.FeatureArmWord | abi.FeatureSourceMAC | abi.FeatureFunctionEvents |
	abi.FeatureVFCommands | abi.FeatureVectors | abi.FeatureIWARP

// client is a driver each of whose steps a check decides.
type client struct {
	t        *T
	stream   *stream
	pool     *arena.Pool
	features uint64 // in use
	number   uint32 // of the function
	admin    adminQueue
}

func newClient(t *T, conn net.Conn, src arena.Source) *client {
	s := &stream{t: t, conn: conn}
	go s.read()
	return &client{t: t, stream: s, pool: arena.NewPool(src), admin: adminQueue{t: t, stream: s}}
}

// hello sends a hello and returns the answer.
func (c *client) hello(h abi.Hello) (r abi.HelloReply) {
	abi.PutText(h.Driver[:], "vnic conform")
	c.stream.answer(&h, &r)
	c.features, c.number = r.Features, r.Function
	return r
}

// attach dials and sends a hello, which must be accepted.
func (t *T) attach() *client { return t.attachWith(features) }

func (t *T) attachWith(features uint64) *client {
	c := t.dial()
	r := c.hello(abi.Hello{Major: abi.VersionMajor, Minor: abi.VersionMinor, Function: t.function, Features: features})
	if r.Status != abi.StatusOK {
		t.Fatalf("hello: %s", r.Status)
	}
	return c
}

// ready attaches and enables the function.
func (t *T) ready() *client {
	c := t.attach()
	c.enable()
	return c
}

func (t *T) readyWith(features uint64) *client {
	c := t.attachWith(features)
	c.enable()
	return c
}

// readStatus reads a register.
func (c *client) readStatus(offset, width uint32) (uint64, abi.Status) {
	var r abi.RegReply
	c.stream.answer(&abi.RegRead{Offset: offset, Width: width}, &r)
	return r.Value, r.Status
}

// register reads a register that must exist.
func (c *client) register(offset uint32) uint64 {
	v, st := c.readStatus(offset, abi.LookupRegister(offset).Width)
	if st != abi.StatusOK {
		c.t.Fatalf("read of %s: %s", abi.LookupRegister(offset).Name, st)
	}
	return v
}

func (c *client) state() abi.State { return abi.State(c.register(abi.RegState)) }

func (c *client) writeStatus(offset, width uint32, v uint64) abi.Status {
	var r abi.RegReply
	c.stream.answer(&abi.RegWrite{Offset: offset, Width: width, Value: v}, &r)
	return r.Status
}

// set writes a register, which must succeed.
func (c *client) set(offset uint32, v uint64) {
	r := abi.LookupRegister(offset)
	if st := c.writeStatus(offset, r.Width, v); st != abi.StatusOK {
		c.t.Fatalf("write of %#x to %s: %s", v, r.Name, st)
	}
}

// control writes RegControl and returns the status.
func (c *client) control(v abi.Control) abi.Status {
	return c.writeStatus(abi.RegControl, 4, uint64(v))
}

// ring sends doorbell records in one message.
func (c *client) ring(records ...abi.Doorbell) {
	body := make([]byte, len(records)*abi.DoorbellSize)
	for i := range records {
		records[i].Marshal(body[i*abi.DoorbellSize:])
	}
	c.stream.write(abi.AppendMessage(nil, abi.MsgDoorbell, 0, body))
}

// alloc returns zeroed memory of whole pages that the device can access.
func (c *client) alloc(n int) *arena.Block {
	b, err := c.pool.Alloc(n)
	c.t.noError(err)
	return b
}

// pages returns a page list of a block.
func (c *client) pages(b *arena.Block) *arena.PageList {
	l, err := c.pool.NewPageList(b.Pages())
	c.t.noError(err)
	return l
}

// mem returns a block as memory of a ring.
func mem(b *arena.Block) ring.Mem { return ring.Mem(b.Bytes()) }
