package rdma

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/falcon-vnic/vnic/rdma/transport"
	"github.com/falcon-vnic/vnic/rdma/verbs"
)

// TestOnlyItsFolderTheRegistryAndTheConfigurationNameAWire: a network is named in its own folder, in
// wires.go, in device/config and, where drivers see it, in the ABI and its conformance kit. No
// identifier, import or string elsewhere names one. Falcon and what stands for it inside a NIC are no
// networks: the device is built on them.
func TestOnlyItsFolderTheRegistryAndTheConfigurationNameAWire(t *testing.T) {
	const root = ".."
	files := token.NewFileSet()
	parsed := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, path)
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || name != "." && strings.HasPrefix(d.Name(), ".") || name == "tools"):
			return fs.SkipDir
		case d.IsDir(), !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"),
			name == "rdma/wires.go", strings.HasPrefix(name, "device/config/"),
			strings.HasPrefix(name, "queues/abi/"), strings.HasPrefix(name, "guestlib/conform/"):
			return nil
		}
		f, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		parsed++
		for _, k := range Wires {
			if !k.IsNetwork() || strings.HasPrefix(name, "rdma/"+k.Name+"/") {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				what := ""
				switch n := n.(type) {
				case *ast.Ident:
					if names(n.Name, k.Name) && !strings.HasPrefix(n.Name, "SLRoCEIPv") { // values of the ABI, as InfiniBand calls them
						what = n.Name
					}
				case *ast.BasicLit:
					if s, err := strconv.Unquote(n.Value); err == nil && (s == k.Name || strings.Contains(s+"/", "vnic/rdma/"+k.Name+"/")) {
						what = n.Value
					}
				}
				if what != "" {
					t.Errorf("%s names %s: %s; let it ask rdma.Wires or a transport.Network", files.Position(n.Pos()), k.Name, what)
				}
				return true
			})
		}
		return nil
	})
	if err != nil || parsed < 300 {
		t.Fatalf("%d files parsed: %v", parsed, err)
	}
}

// names reports whether one of the words of an identifier is name.
func names(identifier, name string) bool {
	lower := strings.ToLower(identifier)
	for from := 0; ; {
		i := strings.Index(lower[from:], name)
		if i < 0 {
			return false
		}
		i += from
		from = i + len(name)
		begins := i == 0 || !unicode.IsLetter(rune(identifier[i-1])) ||
			unicode.IsUpper(rune(identifier[i])) && (unicode.IsLower(rune(identifier[i-1])) || unicode.IsLower(rune(identifier[i+1])))
		ends := from == len(identifier) || !unicode.IsLower(rune(identifier[from]))
		if begins && ends {
			return true
		}
	}
}

// TestWordsOfIdentifiers: a wire's name counts as a word of an identifier in any spelling, and not
// inside another word.
func TestWordsOfIdentifiers(t *testing.T) {
	for identifier, is := range map[string]bool{
		"roce": true, "RoCE": true, "newRoCE": true, "roceWire": true, "DropRoCE": true, "drop_roce": true, "RoCEPort": true, "useRoce": true,
		"process": false, "inprocess": false, "Processor": false, "rocket": false, "SYS_PROCESS_VM": false, "rof": false,
	} {
		if names(identifier, "roce") != is {
			t.Errorf("%s: %t, want %t", identifier, !is, is)
		}
	}
}

// TestRandomRequestsMatchTheModelOverOtherWires is TestRandomRequestsMatchTheModel for connections over
// RoCEv2, in XRC domains too, and iWARP: with shared receive queues, with memory windows, and ordinary ones.
func TestRandomRequestsMatchTheModelOverOtherWires(t *testing.T) {
	for wire, seeds := range map[string]uint64{byRoCE: 60, byIWARP: 30} {
		if testing.Short() {
			seeds = 4
		}
		overEach(t, func(t *testing.T) {
			for seed := range seeds {
				t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { runModel(t, seed) })
			}
		}, wire)
	}
}

// TestOrderingsOfRFC7306OverOtherWires is the table of RFC 7306 §7 over RoCEv2 and iWARP.
func TestOrderingsOfRFC7306OverOtherWires(t *testing.T) {
	overEach(t, TestOrderingsOfRFC7306, byRoCE, byIWARP)
}

// TestAtomicWritesStoreOneWordOverOtherWires is TestAtomicWritesStoreOneWord over RoCEv2 and iWARP, where
// it is a WRITE, too.
func TestAtomicWritesStoreOneWordOverOtherWires(t *testing.T) {
	overEach(t, TestAtomicWritesStoreOneWord, byRoCE, byIWARP)
}

// plainPort is a port of a network that carries no datagrams.
type plainPort struct {
	transport.Port
	weight int
	closed bool
}

func (p *plainPort) SetWeight(n int)            { p.weight = n }
func (p *plainPort) Close()                     { p.closed = true }
func (p *plainPort) Stats() transport.PortStats { return transport.PortStats{Again: 3} }

// TestAPortThatCarriesNoDatagramsLeavesThemToFalcon: a function's datagrams go over Falcon if its
// port does not carry them, whatever is chosen; the port has the function's weight, shows its
// counters and ends with the function.
func TestAPortThatCarriesNoDatagramsLeavesThemToFalcon(t *testing.T) {
	e := NewEngine(Config{})
	f := e.NewFunction(1, nil, verbs.Limits{}.WithDefaults(), nil)
	f.SetWeight(3)
	p := &plainPort{}
	f.UsePort(p, func([16]byte) bool { return true })
	links := new(ways)
	f.destinations.links = links
	to := netip.MustParseAddr("10.0.0.9").As16()
	if f.destinations.To(&verbs.Address{GID: to}, true); len(links.made) != 1 {
		t.Errorf("%d links", len(links.made))
	}
	if f.destinations.To(&verbs.Address{GID: group(1)}, true) != nil {
		t.Error("a group is reached")
	}
	if f.Port() != p || p.weight != 3 || f.PortStats().Again != 3 {
		t.Errorf("%+v", p)
	}
	if f.Close(1); !p.closed {
		t.Error("the port outlives its function")
	}
}
