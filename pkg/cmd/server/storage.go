// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

const (
	// storageIDKey is the key of the storage ID below --etcd-prefix.
	storageIDKey = "storage-id"
	// storageMarkKey is the key of the mark below --etcd-prefix. The leader writes it from time to
	// time. A restored backup has an older mark, by which the server recognizes it.
	storageMarkKey = "storage-mark"

	etcdDialTimeout = 20 * time.Second
	etcdCallTimeout = 10 * time.Second
)

// storage is the embedded or external etcd of this server.
type storage struct {
	client  *clientv3.Client
	key     string
	markKey string
	id      string
}

// dialStorage returns a client for an etcd outside of this process.
func dialStorage(c storagebackend.TransportConfig) (*clientv3.Client, error) {
	config := clientv3.Config{Endpoints: c.ServerList, DialTimeout: etcdDialTimeout}
	var err error
	if config.TLS, err = tlsConfig(c); err != nil {
		return nil, err
	}
	return clientv3.New(config)
}

// tlsConfig returns the TLS configuration of an etcd client; nil if it has neither a certificate
// nor a certificate authority.
func tlsConfig(c storagebackend.TransportConfig) (*tls.Config, error) {
	info := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.TrustedCAFile}
	if info.Empty() && info.TrustedCAFile == "" {
		return nil, nil
	}
	config, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("--etcd-cafile, --etcd-certfile and --etcd-keyfile: %w", err)
	}
	return config, nil
}

// openStorage reads the ID of a storage, and generates an ID if the storage is new. It writes
// nothing otherwise: a storage without space refuses each transaction that may write.
func openStorage(ctx context.Context, client *clientv3.Client, prefix string) (*storage, error) {
	s := &storage{client: client, key: path.Join("/", prefix, storageIDKey), markKey: path.Join("/", prefix, storageMarkKey)}
	ctx, cancel := context.WithTimeout(ctx, etcdCallTimeout)
	defer cancel()
	known, err := client.Get(ctx, s.key)
	if err != nil {
		return nil, fmt.Errorf("read the ID of the storage: %w", err)
	}
	if len(known.Kvs) > 0 {
		s.id = string(known.Kvs[0].Value)
		return s, nil
	}
	drawn := string(uuid.NewUUID())
	answer, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(s.key), "=", 0)).
		Then(clientv3.OpPut(s.key, drawn)).
		Else(clientv3.OpGet(s.key)).
		Commit()
	if err != nil {
		return nil, fmt.Errorf("write the ID of the storage: %w", err)
	}
	s.id = drawn
	if !answer.Succeeded {
		s.id = string(answer.Responses[0].GetResponseRange().Kvs[0].Value)
	}
	return s, nil
}

// revision returns the current revision of the storage. It returns an error if the storage was
// replaced.
func (s *storage) revision(ctx context.Context) (int64, error) {
	answer, err := s.client.Get(ctx, s.key)
	if err != nil {
		return 0, err
	}
	if len(answer.Kvs) != 1 || string(answer.Kvs[0].Value) != s.id {
		return 0, errors.New("the storage was replaced while the server ran")
	}
	return answer.Header.Revision, nil
}

// mark returns the revision of the last mark; 0 if there is none.
func (s *storage) mark(ctx context.Context) (int64, error) {
	answer, err := s.client.Get(ctx, s.markKey)
	if err != nil || len(answer.Kvs) == 0 {
		return 0, err
	}
	return answer.Kvs[0].ModRevision, nil
}

// setMark marks the storage and returns the revision of the mark.
func (s *storage) setMark(ctx context.Context) (int64, error) {
	answer, err := s.client.Put(ctx, s.markKey, s.id)
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}
