package speaker

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/egressway/egressway/internal/bfd"
	"github.com/egressway/egressway/internal/bgp"
	"github.com/egressway/egressway/internal/config"
	"github.com/egressway/egressway/internal/plan"
	"github.com/egressway/egressway/internal/sorted"
)

var update = flag.Bool("update", false, "write the keys of this version's messages to testdata")

// filler gives every field of a value a content of its own.
type filler struct{ n int }

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Type() {
	case reflect.TypeFor[netip.Addr]():
		v.Set(reflect.ValueOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(f.n)})))
		return
	case reflect.TypeFor[netip.Prefix]():
		v.Set(reflect.ValueOf(netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, 100, byte(f.n)}), 32)))
		return
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, f.n, time.UTC)))
		return
	case reflect.TypeFor[bfd.State]():
		v.Set(reflect.ValueOf(bfd.Up))
		return
	case reflect.TypeFor[sorted.List[plan.Announcement]]():
		v.Set(reflect.ValueOf(listOf[plan.Announcement](f)))
		return
	case reflect.TypeFor[sorted.List[plan.Prefix]]():
		v.Set(reflect.ValueOf(listOf[plan.Prefix](f)))
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if !v.Type().Field(i).IsExported() {
				panic(fmt.Sprintf("%s has a field that cannot be sent: %s", v.Type(), v.Type().Field(i).Name))
			}
			if v.Type() == reflect.TypeFor[config.Peer]() && v.Type().Field(i).Tag.Get("json") == "-" {
				continue // a node's own configuration has none, see config.For
			}
			f.fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			f.fill(v.Index(i))
		}
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(int64(f.n))
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(f.n))
	default:
		panic("no content for " + v.Type().String())
	}
}

func listOf[T sorted.Item[T]](f *filler) sorted.List[T] {
	items := make([]T, 2)
	f.fill(reflect.ValueOf(&items).Elem())
	return sorted.Of(items...)
}

func filled[T any]() (x T) {
	new(filler).fill(reflect.ValueOf(&x).Elem())
	return x
}

// send is what arrives of a message.
func send(t *testing.T, m message) (got message) {
	t.Helper()
	b, err := json.Marshal(m)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &got))
	return got
}

// TestEveryFieldTravels is about fields that do not exist yet as well.
func TestEveryFieldTravels(t *testing.T) {
	t.Run("speaker", func(t *testing.T) {
		s := filled[plan.Speaker]()
		got := send(t, message{Hello: &hello{Speakers: []wireSpeaker{toWire(s)}}})
		require.Equal(t, s, got.Hello.Speakers[0].speaker())
	})
	t.Run("change", func(t *testing.T) {
		s := filled[plan.Speaker]()
		desired := askedFor([]plan.Speaker{s})
		c := asked{}.changeTo(desired)
		next, err := asked{}.changed(*send(t, message{Apply: &c}).Apply)
		require.NoError(t, err)
		require.Equal(t, laidOut(desired), laidOut(next))
	})
	t.Run("session", func(t *testing.T) {
		s := filled[bgp.Session]()
		require.Equal(t, s, send(t, message{Sessions: &sessions{[]bgp.Session{s}}}).Sessions.All[0])
	})
	t.Run("learned route", func(t *testing.T) {
		r := filled[plan.Route]()
		require.Equal(t, r, send(t, message{Learned: &learned{Routes: listChange[plan.Route]{Set: []plan.Route{r}}}}).Learned.Routes.Set[0])
	})
	t.Run("group of learned routes", func(t *testing.T) {
		one, two := []plan.NextHop{filled[plan.NextHop]()}, []plan.NextHop{filled[plan.NextHop](), {Device: "eth1"}}
		routes := []plan.Route{
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), NextHops: one},
			{Dst: netip.MustParsePrefix("198.51.100.0/24"), NextHops: two},
			{Dst: netip.MustParsePrefix("2001:db8::/32"), NextHops: one},
		}
		m := send(t, message{Learned: &learned{Groups: grouped(routes)}})
		require.Len(t, m.Learned.Groups, 2)
		require.Equal(t, routes, ungrouped(m.Learned.Groups, new(sameHops)))
	})
	t.Run("other nodes", func(t *testing.T) {
		p, s := filled[bfd.Peer](), filled[bfd.Session]()
		require.Equal(t, p, bfd.Peer(send(t, message{Watch: &watching{Peers: []nodePeer{nodePeer(p)}}}).Watch.Peers[0]))
		require.Equal(t, s, send(t, message{Nodes: &nodes{[]nodeSession{nodeSession(s)}}}).Nodes.sessions()[0])
	})
}

// TestZeroTravels is about values that say "none" by being empty.
func TestZeroTravels(t *testing.T) {
	s := plan.Speaker{Network: "red", Peers: []plan.Peer{{}}}
	require.Equal(t, s, send(t, message{Hello: &hello{Speakers: []wireSpeaker{toWire(s)}}}).Hello.Speakers[0].speaker())
	require.Equal(t, []bgp.Session{{}}, send(t, message{Sessions: &sessions{[]bgp.Session{{}}}}).Sessions.All)
	route := plan.Route{NextHops: []plan.NextHop{{}}}
	require.Equal(t, []plan.Route{route}, send(t, message{Learned: &learned{Routes: listChange[plan.Route]{Set: []plan.Route{route}}}}).Learned.Routes.Set)
}

// TestMessagesStay holds this version to what speakers and agents that are out there say: a key may come, none may get
// another name or meaning, or go. Where one must, Protocol must be another, too.
func TestMessagesStay(t *testing.T) {
	b, err := json.Marshal(filled[message]())
	require.NoError(t, err)
	var said any
	require.NoError(t, json.Unmarshal(b, &said))
	keys := slices.Sorted(maps.Keys(keysOf(said, "", map[string]bool{})))
	const file = "testdata/protocol-1.txt"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(strings.Join(keys, "\n")+"\n"), 0o644))
	}
	before, err := os.ReadFile(file)
	require.NoError(t, err)
	known := strings.Fields(string(before))
	require.Subset(t, keys, known, "other versions say these")
	require.Subset(t, known, keys, "keys that are new: run the test with -update")
}

// keysOf lists every key with the kind of its value.
func keysOf(v any, path string, into map[string]bool) map[string]bool {
	switch v := v.(type) {
	case map[string]any:
		for key, inner := range v {
			keysOf(inner, path+"."+key, into)
		}
	case []any:
		keysOf(v[0], path+"[]", into)
	default:
		into[fmt.Sprintf("%s:%T", strings.TrimPrefix(path, "."), v)] = true
	}
	return into
}

// TestUnknownIsIgnored is about a message of a newer version.
func TestUnknownIsIgnored(t *testing.T) {
	var m message
	require.NoError(t, json.Unmarshal([]byte(`{"id": 7, "apply": {"full": true, "speakers": [{"network": "red", "hue": {"warm": 1},
		"speaker": {"network": "red", "asn": 64512, "peers": [{"address": "10.1.0.1", "authentication": "ao"}]}}]}, "urgent": true}`), &m))
	next, err := asked{}.changed(*m.Apply)
	require.NoError(t, err)
	require.Equal(t, uint32(64512), next["red"].ASN)
	require.Equal(t, "10.1.0.1", nameOf(next["red"].Peers[0]))
}
