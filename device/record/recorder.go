package record

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"github.com/falcon-vnic/vnic/internal/tape"
)

// magic begins a file; its last byte is the version of the format.
var magic = []byte("vnicrec\x05")

// Header describes a recording.
type Header struct {
	Version string // of the program that made it
	NIC     string // nic.name
	Shards  int
	Payload string // what is kept of payload (tape.Payload)
	Started int64  // wall clock, ns since 1970
	Offset  int64  // wall clock minus the shards' clock, ns
	Config  string // text of the configuration
}

// Limits of the format, beyond which a file is refused.
const (
	maxHeader = 2 << 20
	maxChunk  = 64 << 20
	maxShards = 16
)

// A chunk begins with its shard, its length and its CRC-32C.
const chunkHeader = 12

const (
	bufferSize = 1 << 20 // a chunk ends with the first Step beyond it
	bufferRoom = bufferSize + 256<<10
	buffers    = 16 // for each shard, while the file is written
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Recorder writes the tapes of a NIC's shards to a file.
type Recorder struct {
	file  *os.File
	limit int64 // bytes
	full  chan chunk
	empty []chan []byte // by shard
	tapes []*tape.Tape
	done  chan struct{}
	ended chan struct{} // closed when the recording ended before the NIC did
	once  sync.Once
	close func() error // once
	why   atomic.Pointer[string]
	size  atomic.Int64 // of the file, when all is written
	over  atomic.Bool
}

type chunk struct {
	shard int
	b     []byte
}

// Config says what is recorded, and where.
type Config struct {
	File  string       // must not exist
	Made  *os.File     // one that was made with Make, instead of File
	Later bool         // the worker has replaced another: the NIC goes on even without a file
	Keep  tape.Payload // of payload
	Limit int64        // bytes after which the recording ends, with the chunk that reached it
	Text  string       // of the NIC's configuration
}

// Create begins a recording. It adds the text of the configuration to the header.
func Create(c Config, h Header) (*Recorder, error) {
	h.Config, h.Payload = c.Text, c.Keep.String()
	f, err := c.Made, error(nil)
	if f == nil {
		f, err = Make(c.File)
	}
	if err != nil {
		return nil, err
	}
	if _, err = h.write(f); err != nil {
		return nil, errors.Join(fmt.Errorf("recording %s: %w", f.Name(), err), f.Close())
	}
	r := &Recorder{file: f, limit: c.Limit, full: make(chan chunk, buffers*h.Shards), done: make(chan struct{}), ended: make(chan struct{})}
	for shard := range h.Shards {
		r.empty = append(r.empty, make(chan []byte, buffers))
		for range buffers {
			r.empty[shard] <- nil // made when it is needed
		}
		r.tapes = append(r.tapes, tape.Record(bufferSize, c.Keep, func(b []byte) []byte { return r.exchange(shard, b) }))
	}
	r.close = sync.OnceValue(r.finish)
	go r.write()
	return r, nil
}

// Make makes a file for a recording, which only its owner may read.
func Make(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("recording: %w; give a name that no file has, in a folder that exists", err)
	}
	return f, nil
}

// save makes a file, and removes it if it cannot be written.
func save(path string, write func(io.Writer) (int64, error)) (size int64, err error) {
	f, err := Make(path)
	if err != nil {
		return 0, err
	}
	size, err = write(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return 0, errors.Join(fmt.Errorf("recording %s: %w", path, err), os.Remove(path))
	}
	return size, nil
}

// write writes the beginning of a file.
func (h *Header) write(w io.Writer) (size int64, err error) {
	text, err := json.Marshal(h)
	if err != nil {
		return 0, err
	}
	b := binary.LittleEndian.AppendUint32(bytes.Clone(magic), uint32(len(text)))
	b = binary.LittleEndian.AppendUint32(append(b, text...), crc32.Checksum(text, castagnoli))
	n, err := w.Write(b)
	return int64(n), err
}

// write writes a chunk.
func (c *chunk) write(w io.Writer) (size int64, err error) {
	var h [chunkHeader]byte
	h[0] = byte(c.shard)
	binary.LittleEndian.PutUint32(h[4:], uint32(len(c.b)))
	binary.LittleEndian.PutUint32(h[8:], crc32.Checksum(c.b, castagnoli))
	if _, err := w.Write(h[:]); err != nil {
		return 0, err
	}
	n, err := w.Write(c.b)
	return chunkHeader + int64(n), err
}

// Save makes a file of tapes that are in memory, each in chunks. It returns the file's size.
func Save(path string, h Header, tapes [][][]byte) (size int64, err error) {
	return save(path, func(w io.Writer) (int64, error) {
		size, err := h.write(w)
		for shard, chunks := range tapes {
			for _, b := range chunks {
				if err == nil {
					var n int64
					n, err = (&chunk{shard, b}).write(w)
					size += n
				}
			}
		}
		return size, err
	})
}

// Tape returns the tape of a shard, which belongs to its thread.
func (r *Recorder) Tape(shard int) *tape.Tape { return r.tapes[shard] }

// exchange takes a full buffer and returns an empty one; nil: there is none. It never waits.
func (r *Recorder) exchange(shard int, b []byte) []byte {
	if len(b) > 0 {
		r.full <- chunk{shard, b} // there is room for all buffers
		if r.size.Add(chunkHeader+int64(len(b))) >= r.limit {
			r.end(fmt.Sprintf("the file has its %d bytes", r.limit))
		}
	}
	if r.over.Load() {
		return nil
	}
	select {
	case b = <-r.empty[shard]:
	default:
		r.end("the file could not be written as fast as the NIC works")
		return nil
	}
	if b == nil {
		b = make([]byte, 0, bufferRoom)
	}
	return b[:0]
}

// end ends the recording of all shards, each at its next chunk.
func (r *Recorder) end(why string) {
	r.once.Do(func() {
		r.why.Store(&why)
		r.over.Store(true)
		close(r.ended)
	})
}

// write writes chunks until Close.
func (r *Recorder) write() {
	defer close(r.done)
	for c := range r.full {
		if _, err := c.write(r.file); err != nil {
			r.end(err.Error())
		}
		select {
		case r.empty[c.shard] <- c.b:
		default: // one buffer too many was made, because none was empty: it is dropped
		}
	}
}

// Path returns the name of the file.
func (r *Recorder) Path() string { return r.file.Name() }

// Ended returns a channel that is closed when the recording ends before the NIC does.
func (r *Recorder) Ended() <-chan struct{} { return r.ended }

// Why says why the recording ended before the NIC did; "": it did not.
func (r *Recorder) Why() string {
	if why := r.why.Load(); why != nil {
		return *why
	}
	return ""
}

// Close writes what is left. The threads of the shards, or their tapes, have ended.
func (r *Recorder) Close() error { return r.close() }

func (r *Recorder) finish() error {
	for _, t := range r.tapes {
		t.End()
	}
	close(r.full)
	<-r.done
	return r.file.Close()
}

// Recording is a file that was recorded.
type Recording struct {
	Header
	keep tape.Payload
	file io.ReaderAt
	at   int64 // of the first chunk
}

// Read reads the header of a recording.
func Read(f io.ReaderAt) (*Recording, error) {
	head := make([]byte, len(magic)+4)
	if _, err := f.ReadAt(head, 0); err != nil || !bytes.Equal(head[:len(magic)-1], magic[:len(magic)-1]) {
		return nil, errors.New("this is not a recording made by vnic")
	}
	if v := head[len(magic)-1]; v != magic[len(magic)-1] {
		return nil, fmt.Errorf("the recording has version %d of the format, this program reads %d: use the program that made it", v, magic[len(magic)-1])
	}
	n := binary.LittleEndian.Uint32(head[len(magic):])
	if n > maxHeader {
		return nil, fmt.Errorf("the recording's header has %d bytes, more than %d", n, maxHeader)
	}
	text := make([]byte, n+4)
	if _, err := f.ReadAt(text, int64(len(head))); err != nil {
		return nil, fmt.Errorf("the recording's header is cut: %w", err)
	}
	sum := binary.LittleEndian.Uint32(text[n:])
	r := &Recording{file: f, at: int64(len(head) + len(text))}
	if text = text[:n]; crc32.Checksum(text, castagnoli) != sum {
		return nil, errors.New("the recording's header is damaged")
	}
	if err := json.Unmarshal(text, &r.Header); err != nil {
		return nil, fmt.Errorf("the recording's header is damaged: %w", err)
	}
	if r.Shards < 1 || r.Shards > maxShards {
		return nil, fmt.Errorf("the recording is of %d shards; a NIC has 1 to %d", r.Shards, maxShards)
	}
	var ok bool
	if r.keep, ok = tape.ParsePayload(r.Payload); !ok {
		return nil, fmt.Errorf("the recording keeps %q of payload, which this version of vnic does not know", r.Payload)
	}
	return r, nil
}

// Tape returns a tape that plays a shard.
func (r *Recording) Tape(shard int) *tape.Tape { return tape.Play(r.keep, r.chunks(shard)) }

// List returns a tape for somebody who only reads what is on it. It may be without a beginning.
func (r *Recording) List(shard int) *tape.Tape { return tape.List(r.keep, r.chunks(shard)) }

// Begins returns how many Steps of a shard are missing at the beginning, and the time of the last of them.
func (r *Recording) Begins(shard int) (steps uint64, now int64, err error) {
	b, err := r.chunks(shard)()
	if errors.Is(err, io.EOF) {
		return 0, 0, nil
	}
	steps, now = tape.Begins(b)
	return steps, now, err
}

// chunks returns a function that returns the chunks of a shard, one after the other.
func (r *Recording) chunks(shard int) func() ([]byte, error) {
	at := r.at
	return func() ([]byte, error) {
		for {
			c, err := r.chunk(&at)
			if err != nil || c.shard == shard {
				return c.b, err
			}
		}
	}
}

// chunk reads the chunk at *at and moves behind it. A last chunk that is cut, as by a machine that
// lost its power, ends the recording before it.
func (r *Recording) chunk(at *int64) (c chunk, err error) {
	var h [chunkHeader]byte
	if _, err := r.file.ReadAt(h[:], *at); err != nil {
		return c, io.EOF
	}
	n := binary.LittleEndian.Uint32(h[4:])
	if n > maxChunk {
		return c, fmt.Errorf("the recording is damaged at byte %d: a chunk of %d bytes", *at, n)
	}
	c = chunk{int(h[0]), make([]byte, n)}
	if _, err := r.file.ReadAt(c.b, *at+chunkHeader); err != nil {
		return c, io.EOF
	}
	if crc32.Checksum(c.b, castagnoli) != binary.LittleEndian.Uint32(h[8:]) {
		return c, fmt.Errorf("the recording is damaged at byte %d: its checksum is wrong", *at)
	}
	*at += chunkHeader + int64(n)
	return c, nil
}
