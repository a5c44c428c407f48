#!/bin/sh
# SPDX-License-Identifier: GPL-2.0-or-later
# Extracted Debian roots for the kernel lab: one per kernel role, and one with QEMU. Nothing is installed on the host.
#
# usage: roots.sh list                    roles, suites, versions found in the cache
#        roots.sh get ROLE...             fetches what the cache lacks; ROLE: stable-1 stable backports sid qemu,
#                                         stable-1-debug backports-debug (kernels built here, 10 min and more)
#        roots.sh has ROLE                prints yes or no
#        roots.sh busybox                 prints the path of a static busybox, fetched where the cache has none
#        roots.sh path ROLE               prints the folder of a cached root
#        roots.sh version ROLE            prints the kernel release of a cached root
#        roots.sh run ROLE CMD...         runs CMD inside the root (its own mount namespace, /proc mounted)
#        roots.sh build ROLE DIR OUT [ARG..]  builds a copy in OUT of the module sources DIR, inside the root
#
# Needs root (chroot, mount namespace), apt and perl. mmdebstrap is taken from PATH or unpacked into the cache.
# The archive is the one of the host's own apt sources; KZ_MIRROR=URI names another one.
# Cache: ${XDG_CACHE_HOME:-$HOME/.cache}/kangzao/roots/<suite>. A root takes 0.5 to 0.8 GB, the five about 3.5 GB.
# Exit: 0 done, 1 failed, 2 usage, 125 this host cannot do it (no root, no archive, no space).
set -eu

cache="${XDG_CACHE_HOME:-$HOME/.cache}/kangzao/roots"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
tools="gcc,libc6-dev,make,dash,bash,coreutils,sed,grep,mawk,findutils,kmod,xz-utils"
need_mb=1200
need_debug_mb=6000
here=$(cd "$(dirname "$0")" && pwd)

die() { code=$1; shift; echo "roots: $*" >&2; exit "$code"; }
usage() { sed -n '5,14s/^# //p' "$0" >&2; exit 2; }

suite_of() {
  case "$1" in
    stable-1) echo bookworm ;;
    stable) echo trixie ;;
    backports) echo trixie-backports ;;
    sid) echo sid ;;
    stable-1-debug) echo bookworm-debug ;;
    backports-debug) echo trixie-backports-debug ;;
    qemu) echo qemu ;;
    *) die 2 "unknown role '$1' (stable-1, stable, backports, sid, stable-1-debug, backports-debug, qemu)" ;;
  esac
}

root_of() { echo "$cache/$(suite_of "$1")"; }

mirror() {
  if [ -n "${KZ_MIRROR:-}" ]; then
    echo "$KZ_MIRROR"
    return
  fi
  apt-get indextargets --format '$(REPO_URI) $(RELEASE)' 'Created-By: Packages' 'Component: main' 2>/dev/null |
    awk '/\/debian\/ / { print $1; exit }' | grep . || die 125 "no Debian archive in the host's apt sources; set KZ_MIRROR"
}

# A sources file for a suite; backports need their base suite too.
sources() {
  case "${1%-debug}" in
    bookworm) suites="bookworm" ;;
    trixie-backports | qemu) suites="trixie trixie-backports" ;;
    *) suites="${1%-debug}" ;;
  esac
  printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nSigned-By: %s\n' "$(mirror)" "$suites" "$keyring"
}

# Runs an apt tool on private lists of one suite: apt_private SUITE TOOL ARGS...
apt_private() {
  lists="$cache/.apt/$1"
  tool=$2
  shift 2
  "$tool" -o Dir::State="$lists" -o Dir::State::status=/dev/null -o Dir::Cache="$lists/cache" \
    -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$lists/sources.list.d" \
    -o Acquire::Check-Valid-Until=false -o APT::Sandbox::User=root "$@"
}

# The release (uname -r) of the newest generic amd64 kernel of a suite.
newest() {
  suite=$1
  lists="$cache/.apt/$suite"
  mkdir -p "$lists/lists/partial" "$lists/cache/archives/partial" "$lists/sources.list.d"
  sources "$suite" >"$lists/sources.list.d/lab.sources"
  apt_private "$suite" apt-get -qq -o APT::Update::Error-Mode=any update 2>/dev/null || die 125 "the archive $(mirror) cannot be reached for $suite"
  pin=linux-headers-amd64
  case "$suite" in *-backports) version=$(apt_private "$suite" apt-cache madison "$pin" | awk '/backports/ { print $3; exit }') ;;
    *) version=$(apt_private "$suite" apt-cache madison "$pin" | awk '{ print $3; exit }') ;;
  esac
  apt_private "$suite" apt-cache show "$pin=$version" | sed -n 's/^Depends:.*linux-headers-\([^ ,]*-amd64\).*/\1/p' |
    head -n 1 | grep . || die 1 "no kernel headers found in $suite"
}

# One at a time fills the cache; whoever waited looks again whether anything is left to do.
lock_cache() {
  mkdir -p "$cache"
  exec 9>"$cache/.lock"
  flock -n 9 || { echo "roots: waiting for another roots.sh that fills $cache" >&2; flock 9; }
}
unlock_cache() { exec 9>&-; }

# The files of a package in $cache/NAME: all of them, or none. unpack PACKAGE NAME
unpack() {
  fresh="$cache/$2.new"
  rm -rf "$fresh"
  mkdir -p "$fresh"
  (cd "$fresh" && apt-get -qq -o APT::Sandbox::User=root download "$1" && dpkg-deb -x "$1"_*.deb . && rm -f "$1"_*.deb) || return 1
  rm -rf "${cache:?}/$2"
  mv "$fresh" "$cache/$2"
}

# The cache is locked.
find_mmdebstrap() {
  if command -v mmdebstrap >/dev/null 2>&1; then
    mm=mmdebstrap
    hooks=/usr/share/mmdebstrap/hooks
    return
  fi
  mm="$cache/.mmdebstrap/usr/bin/mmdebstrap"
  hooks="$cache/.mmdebstrap/usr/share/mmdebstrap/hooks"
  [ -x "$mm" ] || unpack mmdebstrap .mmdebstrap || die 125 "mmdebstrap is neither installed nor to be had from the archive"
}

has_busybox() {
  for busybox in "$cache/.busybox/bin/busybox" "$cache/.busybox/usr/bin/busybox"; do
    [ ! -x "$busybox" ] || return 0
  done
  return 1
}

find_busybox() {
  has_busybox && return
  lock_cache
  has_busybox || { unpack busybox-static .busybox && has_busybox; } || die 125 "busybox-static is not to be had from the archive"
  unlock_cache
}

check_host() {
  [ "$(id -u)" -eq 0 ] || die 125 "extracting and entering a root needs root"
  [ -r "$keyring" ] || die 125 "no $keyring (package debian-archive-keyring)"
  mkdir -p "$cache"
  free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$need_mb" ] || die 125 "$cache has $free MB free, a root needs $need_mb MB"
}

extract() {
  suite=$1
  base=${suite%-debug}
  base=${base%-backports}
  shift
  dir="$cache/$suite"
  rm -rf "$dir.new"
  sources "$suite" >"$cache/$suite.sources"
  [ "$suite" = qemu ] && base=trixie
  "$mm" --quiet --mode=root --variant=extract "--hook-dir=$hooks/merged-usr" \
    --aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Check-Valid-Until "false"' "$@" \
    "$base" "$dir.new" "$cache/$suite.sources" || die 1 "extracting $suite failed"
  rm -f "$cache/$suite.sources"
}

get_qemu() {
  extract qemu '--aptopt=APT::Default-Release "trixie-backports"' --include=qemu-system-x86
  rm -rf "$cache/qemu"
  mv "$cache/qemu.new" "$cache/qemu"
}

# A kernel with every checker on, built from the suite's own source package inside a root of its own.
get_debug() {
  suite=$(suite_of "$1")
  release=$(newest "${suite%-debug}")
  source="linux-source-$(echo "$release" | cut -d. -f1,2)"
  case "$suite" in *-backports-debug) source="$source/${suite%-debug}" ;; esac
  free=$(df -Pm "$cache" | awk 'NR == 2 { print $4 }')
  [ "$free" -ge "$need_debug_mb" ] || die 125 "$cache has $free MB free, building a debug kernel needs $need_debug_mb MB"
  extract "$suite" "--include=$source,flex,bison,bc,libelf-dev,perl-base,tar,diffutils,cpio,$tools"
  ln -sf mawk "$cache/$suite.new/usr/bin/awk"
  cp "$here/debug-kernel.sh" "$here/debug.config" "$cache/$suite.new/usr/src/"
  enter "$cache/$suite.new" sh /usr/src/debug-kernel.sh >"$cache/$suite.log" 2>&1 ||
    die 1 "building the debug kernel failed: $(tail -n 1 "$cache/$suite.log") (see $cache/$suite.log)"
  rm -rf "${cache:?}/$suite"
  mv "$cache/$suite.new" "$cache/$suite"
}

get_kernel() {
  suite=$(suite_of "$1")
  release=$(newest "$suite")
  headers="linux-headers-$release"
  if apt_private "$suite" apt-cache show "linux-binary-$release" >/dev/null 2>&1; then
    image="linux-binary-$release,linux-modules-$release"
  else
    image="linux-image-$release"
  fi
  case "$suite" in *-backports) headers="$headers/$suite" ;; esac
  extract "$suite" "--include=$image,$headers,$tools"
  ln -sf mawk "$cache/$suite.new/usr/bin/awk"
  depmod -b "$cache/$suite.new" "$release" 2>/dev/null || enter "$cache/$suite.new" depmod "$release"
  echo "$release" >"$cache/$suite.new/.kz-release"
  rm -rf "${cache:?}/$suite"
  mv "$cache/$suite.new" "$cache/$suite"
}

get() {
  for role in "$@"; do
    dir=$(root_of "$role")
    [ -d "$dir" ] && continue
    check_host
    lock_cache
    if [ -d "$dir" ]; then unlock_cache; continue; fi
    find_mmdebstrap
    echo "roots: fetching $role ($(suite_of "$role"))"
    case "$role" in
      qemu) get_qemu ;;
      *-debug) get_debug "$role" ;;
      *) get_kernel "$role" ;;
    esac
    unlock_cache
  done
}

have() { [ -d "$(root_of "$1")" ] || die 1 "$1 is not in the cache; first: roots.sh get $1"; }

enter() {
  dir=$1
  shift
  mkdir -p "$dir/proc" "$dir/root"
  unshare -m sh -c 'd=$1; shift; mount -t proc proc "$d/proc"; mount --bind /dev/null "$d/dev/null" 2>/dev/null || :
    exec chroot "$d" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C "$@"' sh "$dir" "$@"
}

# Builds a copy, so that the tree stays clean: OUT/<name of DIR>, and beside it the sibling folder `uapi` of DIR if any.
build() {
  role=$1
  src=$(cd "$2" && pwd)
  mkdir -p "$3"
  out=$(cd "$3" && pwd)
  shift 3
  have "$role"
  dir=$(root_of "$role")
  release=$(cat "$dir/.kz-release")
  name=$(basename "$src")
  mkdir -p "$dir/mnt" "$out/$name"
  cp -a "$src/." "$out/$name/"
  [ ! -d "$src/../uapi" ] || { mkdir -p "$out/uapi"; cp -a "$src/../uapi/." "$out/uapi/"; }
  unshare -m sh -c 'd=$1 o=$2 r=$3 n=$4; shift 4; mount -t proc proc "$d/proc"; mount --bind "$o" "$d/mnt"
    exec chroot "$d" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C \
    make -j"$(nproc)" -C "/lib/modules/$r/build" M="/mnt/$n" "$@"' sh "$dir" "$out" "$release" "$name" "$@"
}

[ $# -ge 1 ] || usage
verb=$1
shift
case "$verb" in
  list)
    for role in stable-1 stable backports sid stable-1-debug backports-debug qemu; do
      dir=$(root_of "$role")
      if [ -d "$dir" ]; then state=$(cat "$dir/.kz-release" 2>/dev/null || echo cached); else state=-; fi
      printf '%-16s %-24s %s\n' "$role" "$(suite_of "$role")" "$state"
    done
    ;;
  get) [ $# -ge 1 ] || usage; get "$@" ;;
  has) [ $# -eq 1 ] || usage; dir=$(root_of "$1"); if [ -d "$dir" ]; then echo yes; else echo no; fi ;;
  busybox) find_busybox; echo "$busybox" ;;
  path) [ $# -eq 1 ] || usage; have "$1"; root_of "$1" ;;
  version) [ $# -eq 1 ] || usage; have "$1"; cat "$(root_of "$1")/.kz-release" ;;
  run) [ $# -ge 2 ] || usage; role=$1; shift; have "$role"; enter "$(root_of "$role")" "$@" ;;
  build) [ $# -ge 3 ] || usage; build "$@" ;;
  *) usage ;;
esac
