/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

// Package embeddedetcd runs a single etcd member inside the server, reachable through unix sockets only: no port, no credentials to leak.
package embeddedetcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/klog/v2"
)

const (
	// MaxRequestBytes is the largest write the embedded etcd takes, in bytes. etcd's own default of 1.5 MiB leaves little room for the
	// status of a maintenance over 5,000 nodes with a long plan.
	MaxRequestBytes = 4 << 20
	// DefaultQuotaBytes is the size at which etcd stops taking writes, in bytes.
	DefaultQuotaBytes = 8 << 30

	// maxSocketPath is how long the path of a unix socket may be on Linux, without the closing zero.
	maxSocketPath = 107
	startTimeout  = 2 * time.Minute
)

// Options say where the data lies and how large it may grow.
type Options struct {
	// DataDir is the folder for the data; it is created, readable by its owner alone.
	DataDir string
	// QuotaBytes is the size at which etcd stops taking writes, in bytes.
	QuotaBytes int64
}

// Server is a running embedded etcd.
type Server struct {
	etcd      *embed.Etcd
	endpoint  string
	storageID string
	socketDir string
	lock      *fileutil.LockedFile
	logLevel  zap.AtomicLevel
}

// Start brings etcd up and returns when it serves. Writes are synced to disk before they are acknowledged.
func Start(ctx context.Context, o Options) (*Server, error) {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the data directory: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keep others out of the data directory: %w", err)
	}
	s := &Server{logLevel: zap.NewAtomicLevelAt(zapcore.WarnLevel)}
	if err := s.open(ctx, dir, o.QuotaBytes); err != nil {
		s.release()
		return nil, err
	}
	klog.FromContext(ctx).Info("Embedded etcd serves", "dataDir", dir, "endpoint", s.endpoint, "storageID", s.storageID)
	return s, nil
}

func (s *Server) open(ctx context.Context, dir string, quota int64) error {
	// etcd locks its files only after it has made its sockets, so a second server would take the sockets away from the first.
	lock, err := fileutil.TryLockFile(filepath.Join(dir, "lock"), os.O_WRONLY|os.O_CREATE, 0o600)
	if errors.Is(err, fileutil.ErrLocked) {
		return fmt.Errorf("the data directory %s is in use by another server", dir)
	}
	if err != nil {
		return fmt.Errorf("lock the data directory: %w", err)
	}
	s.lock = lock
	if s.storageID, err = loadStorageID(filepath.Join(dir, "storage-id")); err != nil {
		return err
	}
	socketDir, err := s.chooseSocketDir(dir)
	if err != nil {
		return err
	}
	client, peer := filepath.Join(socketDir, "client.sock"), filepath.Join(socketDir, "peer.sock")
	// A killed process leaves its sockets behind; nobody else owns them, since we hold the lock.
	for _, path := range []string{client, peer} {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("remove a left-over socket: %w", err)
		}
	}
	s.endpoint = "unix://" + client
	return s.start(ctx, s.config(dir, quota, client, peer))
}

func (s *Server) start(ctx context.Context, cfg *embed.Config) error {
	etcd, err := embed.StartEtcd(cfg)
	if err != nil {
		return fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
	}
	select {
	case <-etcd.Server.ReadyNotify():
		s.etcd = etcd
		return nil
	case err = <-etcd.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(startTimeout):
		err = fmt.Errorf("not ready after %v", startTimeout)
	}
	etcd.Close()
	return fmt.Errorf("start the embedded etcd in %s: %w", cfg.Dir, err)
}

func (s *Server) config(dir string, quota int64, client, peer string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "haulout"
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{socketURL(client)}, []url.URL{socketURL(client)}
	// For peers etcd listens on the host part of the URL alone. Empty, it would become a socket without a file, which every process of the
	// machine may open.
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: peer}}, []url.URL{socketURL(peer)}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.QuotaBackendBytes = quota
	cfg.MaxRequestBytes = MaxRequestBytes
	// The API server compacts on its own; this is for what it leaves when it is down for long.
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "30m"
	// The watch cache's bookmarks are only as fresh as etcd's progress notifications.
	cfg.WatchProgressNotifyInterval = 5 * time.Second
	zapConfig := zap.NewProductionConfig()
	zapConfig.Level = s.logLevel
	zapConfig.Sampling = nil
	if logger, err := zapConfig.Build(); err == nil {
		cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(logger.Named("etcd"))
	}
	return cfg
}

// chooseSocketDir returns the folder for the sockets: beside the data where the path is short enough, else a private temporary one.
func (s *Server) chooseSocketDir(dir string) (string, error) {
	if len(filepath.Join(dir, "client.sock")) <= maxSocketPath {
		return dir, nil
	}
	tmp, err := os.MkdirTemp("", "haulout-etcd-")
	if err != nil {
		return "", fmt.Errorf("the path of the data directory is too long for a unix socket, and no temporary folder can be made: %w", err)
	}
	s.socketDir = tmp
	return tmp, nil
}

func (s *Server) release() {
	if s.socketDir != "" {
		_ = os.RemoveAll(s.socketDir)
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func socketURL(path string) url.URL {
	return url.URL{Scheme: "unix", Path: path}
}

// loadStorageID returns the identity of the data, drawn once when the directory is new. Two servers with embedded storage are told apart
// by it, and one that comes back with the same data is known again.
func loadStorageID(file string) (string, error) {
	content, err := os.ReadFile(file)
	if err == nil {
		if id := strings.TrimSpace(string(content)); id != "" {
			return id, nil
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", err
	}
	id := string(uuid.NewUUID())
	if err := os.WriteFile(file, []byte(id+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write the identity of the data: %w", err)
	}
	return id, nil
}

// Endpoint is the URL under which etcd clients reach the member.
func (s *Server) Endpoint() string { return s.endpoint }

// StorageID identifies the data in the data directory for as long as it exists.
func (s *Server) StorageID() string { return s.storageID }

// Err delivers the error with which etcd stopped on its own, for example because the disk failed.
func (s *Server) Err() <-chan error { return s.etcd.Err() }

// Stop ends etcd; to be called after the last client is done.
func (s *Server) Stop() {
	// Closing its own listeners is an error to etcd, not to anybody who reads the log.
	s.logLevel.SetLevel(zapcore.FatalLevel)
	s.etcd.Close()
	s.release()
}
