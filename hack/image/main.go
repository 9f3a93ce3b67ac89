// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Command image packs one static program as a container image, without a container engine. It
// writes an OCI layout with all platforms, and an archive per platform that `docker load` and `ctr
// images import` accept.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/spf13/pflag"
)

// options are the flags.
type options struct {
	tag      string
	layout   string
	archives string
	user     string
	programs []string
	command  []string
	labels   map[string]string
	created  string
}

func main() {
	var o options
	pflag.StringVar(&o.tag, "tag", "", "name and tag of the image, as in localhost/app:1 (required)")
	pflag.StringVar(&o.layout, "layout", "", "folder of the OCI layout; it is replaced")
	pflag.StringVar(&o.archives, "archives", "", "folder of the archives, NAME-ARCHITECTURE.tar")
	pflag.StringVar(&o.user, "user", "65532:65532", "user and group of the process")
	pflag.StringArrayVar(&o.programs, "program", nil, "platform and static program, as in linux/amd64=bin/app (required, repeatable)")
	pflag.StringArrayVar(&o.command, "command", nil, "argument of the program (repeatable)")
	pflag.StringToStringVar(&o.labels, "label", nil, "label of the image, as in KEY=VALUE (repeatable)")
	pflag.StringVar(&o.created, "created", "1970-01-01T00:00:00Z", "time of the image in RFC 3339, for reproducible builds that of the commit")
	pflag.Parse()
	if err := run(o, pflag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

func run(o options, args []string) error {
	switch {
	case len(args) > 0:
		return fmt.Errorf("%q is not a flag", args[0])
	case len(o.programs) == 0:
		return errors.New("--program: at least one is required")
	case o.layout == "" && o.archives == "":
		return errors.New("--layout or --archives: one is required")
	}
	tag, err := name.NewTag(o.tag, name.StrictValidation)
	if err != nil {
		return fmt.Errorf("--tag=%q: %w", o.tag, err)
	}
	created, err := time.Parse(time.RFC3339, o.created)
	if err != nil {
		return fmt.Errorf("--created=%q: must be a time in RFC 3339: %w", o.created, err)
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range o.programs {
		where, program, found := strings.Cut(text, "=")
		platform, err := v1.ParsePlatform(where)
		if err != nil || !found || program == "" || platform.OS == "" || platform.Architecture == "" {
			return fmt.Errorf("--program=%q: must have the form OS/ARCHITECTURE=FILE", text)
		}
		image, err := newImage(o, *platform, program, created)
		if err != nil {
			return fmt.Errorf("--program=%q: %w", text, err)
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{
			Platform:    platform,
			Annotations: map[string]string{"io.containerd.image.name": tag.String(), "org.opencontainers.image.ref.name": tag.TagStr()},
		}})
		if o.archives == "" {
			continue
		}
		if err := os.MkdirAll(o.archives, 0o755); err != nil {
			return err
		}
		base := tag.RepositoryStr()[strings.LastIndexByte(tag.RepositoryStr(), '/')+1:]
		archive := filepath.Join(o.archives, base+"-"+platform.Architecture+".tar")
		if err := tarball.WriteToFile(archive, tag, image); err != nil {
			return fmt.Errorf("write %s: %w", archive, err)
		}
	}
	if o.layout == "" {
		return nil
	}
	if err := os.RemoveAll(o.layout); err != nil {
		return err
	}
	_, err = layout.Write(o.layout, index)
	return err
}

func newImage(o options, platform v1.Platform, program string, created time.Time) (v1.Image, error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return nil, err
	}
	inside := filepath.Base(program)
	packed, err := pack(inside, content, created)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(packed)), nil },
		tarball.WithCompressionLevel(gzip.BestSpeed), tarball.WithMediaType(types.OCILayer),
	)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: created}, CreatedBy: "haulout.dev/haulout/hack/image"},
	})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: created}
	config.Config = v1.Config{
		Entrypoint: append([]string{"/" + inside}, o.command...),
		Env:        []string{"PATH=/"},
		User:       o.user,
		WorkingDir: "/",
		Labels:     o.labels,
	}
	return mutate.ConfigFile(image, config)
}

// pack returns a layer with the program. All users may read and execute the program, and no user
// may write it.
func pack(inside string, content []byte, created time.Time) ([]byte, error) {
	var out bytes.Buffer
	archive := tar.NewWriter(&out)
	header := &tar.Header{
		Name: inside, Size: int64(len(content)), Mode: 0o555, ModTime: created, Format: tar.FormatPAX,
	}
	if err := archive.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := archive.Write(content); err != nil {
		return nil, err
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	return slices.Clip(out.Bytes()), nil
}
