// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package staticpods

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"slices"
)

// placeOf returns where the API server with the URL of a kubeconfig is. Of a name with several
// addresses, one of this node is enough.
func placeOf(ctx context.Context, server string, own func() ([]netip.Addr, error),
	resolve func(ctx context.Context, host string) ([]netip.Addr, error),
) apiPlace {
	base, err := url.Parse(server)
	if err != nil || base.Hostname() == "" {
		return apiUnknown
	}
	addresses, elsewhere := []netip.Addr{}, apiNamed
	if address, err := netip.ParseAddr(base.Hostname()); err == nil {
		addresses, elsewhere = append(addresses, address), apiElsewhere
	} else if addresses, err = resolve(ctx, base.Hostname()); err != nil || len(addresses) == 0 {
		return apiUnknown
	}
	ours, err := own()
	if err != nil {
		return apiUnknown
	}
	if slices.ContainsFunc(addresses, func(address netip.Addr) bool {
		address = address.Unmap()
		return address.IsLoopback() || address.IsUnspecified() || slices.Contains(ours, address)
	}) {
		return apiHere
	}
	return elsewhere
}

// lookup returns the addresses of a host.
func lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// ownAddresses returns the addresses of the network interfaces of this node.
func ownAddresses() ([]netip.Addr, error) {
	list, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var found []netip.Addr
	for _, item := range list {
		if prefix, err := netip.ParsePrefix(item.String()); err == nil {
			found = append(found, prefix.Addr().Unmap())
		}
	}
	return found, nil
}
