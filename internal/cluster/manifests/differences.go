package manifests

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/egressway/egressway/internal/cluster"
)

// differences applies changed entries to a folder's objects, and collects which have changed.
type differences struct {
	folder   *Folder
	services map[cluster.Key]bool
	cidrs    bool
	changed  cluster.Changed
}

// add replaces the entry in force of a name by another, or by itself; nil: none.
func (d *differences) add(before, now *entry) {
	had, has := before.object(), now.object()
	switch {
	case before == now:
		d.keep(has)
	case isSlice(had) || isSlice(has):
		d.replaceSlice(before, now, had, has)
	case reflect.DeepEqual(had, has):
	case has != nil:
		d.set(has, true)
	default:
		d.set(had, false)
	}
}

// object returns the entry's object; nil: there is no entry.
func (e *entry) object() any {
	if e == nil {
		return nil
	}
	return e.value
}

func isSlice(object any) bool {
	_, slice := object.(endpoints)
	return slice
}

// set sets an object that is there, or deletes one that is not.
func (d *differences) set(object any, there bool) {
	o := &d.folder.objects
	switch v := object.(type) {
	case egressService:
		set(&o.egressServices, v.key, v.object, there)
		d.changed.Add(cluster.KindEgressService.ID(v.key))
	case egressIP:
		set(&o.egressIPs, v.key, v.object, there)
		d.changed.Add(cluster.KindEgressIP.ID(v.key))
	case egressQoS:
		set(&o.egressQoSes, v.key, v.object, there)
		d.changed.Add(cluster.KindEgressQoS.ID(v.key))
	case egressFirewall:
		set(&o.firewalls, v.key, v.object, there)
		d.changed.Add(cluster.KindEgressFirewall.ID(v.key))
	case service:
		set(&o.services, v.key, v.object, there)
		d.changed.Add(cluster.KindEgressService.ID(v.key))
	case node:
		set(&o.nodes, v.name, v.object, there)
		d.changed.All = true
	case namespace:
		set(&o.namespaces, v.name, v.object, there)
		d.changed.All = true
	case pod:
		set(&o.pods, v.key, v.object, there)
		d.changed.AddPod(v.key)
	case serviceCIDR:
		d.cidrs = true
	}
}

// replaceSlice moves an EndpointSlice from the Service that it had to the one that it has; each may be absent.
func (d *differences) replaceSlice(before, now *entry, had, has any) {
	if had, ok := had.(endpoints); ok {
		d.services[had.service] = true
		s := slices.DeleteFunc(slices.Clone(d.folder.slices[had.service]), func(e *entry) bool { return e == before })
		if d.folder.slices[had.service] = s; len(s) == 0 {
			delete(d.folder.slices, had.service)
		}
	}
	if has, ok := has.(endpoints); ok {
		d.services[has.service] = true
		d.folder.slices[has.service] = append(d.folder.slices[has.service], now)
	}
}

// keep handles the object of an entry that stays in force, but whose place among other entries may have changed.
func (d *differences) keep(object any) {
	if v, is := object.(endpoints); is {
		d.services[v.service] = true
	}
}

// finish merges objects that consist of several entries.
func (d *differences) finish() {
	for key := range d.services {
		d.mergeSlices(key)
	}
	if d.cidrs {
		d.mergeCIDRs()
	}
}

// mergeSlices sets the endpoints of a Service to those of all its EndpointSlices.
func (d *differences) mergeSlices(key cluster.Key) {
	var all []cluster.Endpoint
	of := d.folder.slices[key]
	if slices.SortFunc(of, compare); len(of) == 1 {
		all = of[0].value.(endpoints).list
	} else {
		for _, e := range of {
			all = append(all, e.value.(endpoints).list...)
		}
		all = cluster.CompactEndpoints(all)
	}
	if o := &d.folder.objects.endpoints; !slices.Equal(all, o.At(key)) {
		set(o, key, all, len(all) > 0)
		d.changed.Add(cluster.KindEgressService.ID(key))
	}
}

// mergeCIDRs sets the ServiceCIDRs to those of all entries in force.
func (d *differences) mergeCIDRs() {
	var all []netip.Prefix
	for e := range d.folder.entries() {
		if v, is := e.value.(serviceCIDR); is && e.by == e {
			all = append(all, v.cidrs...)
		}
	}
	slices.SortFunc(all, netip.Prefix.Compare)
	if o := &d.folder.objects; !slices.Equal(all, o.serviceCIDRs) {
		o.serviceCIDRs, d.changed.All = all, true
	}
}

func set[K comparable, V any](all *cluster.Draft[K, V], key K, value V, there bool) {
	if there {
		all.Set(key, value)
	} else {
		all.Delete(key)
	}
}
