# Machines that serve watches, behind a load balancer that only CloudFront reaches. Each also projects, once a second:
# a projector that runs all the time compacts, and its snapshot is a second behind the log.
locals {
  watcher_port = 7381
}

resource "aws_security_group" "watcher" {
  name        = "${var.name}-watcher"
  description = "Watchers"
  vpc_id      = aws_vpc.cell.id
}

resource "aws_vpc_security_group_ingress_rule" "watcher" {
  security_group_id            = aws_security_group.watcher.id
  description                  = "The load balancer"
  referenced_security_group_id = aws_security_group.balancer.id
  ip_protocol                  = "tcp"
  from_port                    = local.watcher_port
  to_port                      = local.watcher_port
}

resource "aws_launch_template" "watcher" {
  name                   = "${var.name}-watcher"
  image_id               = data.aws_ssm_parameter.machine_image.value
  instance_type          = var.watcher_machine
  update_default_version = true
  vpc_security_group_ids = [aws_security_group.watcher.id, aws_security_group.clients.id]
  user_data = base64encode(templatefile("${path.module}/machine/watcher.sh.tftpl", {
    artifacts    = var.artifacts
    release      = var.release
    region       = var.region
    replicas     = var.log_servers
    environments = local.machine_environments
    port         = local.watcher_port
    doorbell     = aws_sqs_queue.doorbell.url
    agent        = templatefile("${path.module}/machine/agent.json.tftpl", { group = aws_cloudwatch_log_group.machines.name, projects = true })
  }))
  iam_instance_profile {
    arn = aws_iam_instance_profile.machine["watcher"].arn
  }
  metadata_options {
    http_tokens = "required"
  }
  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_type = "gp3"
      volume_size = 10
      encrypted   = true
    }
  }
}

resource "aws_autoscaling_group" "watcher" {
  name                      = "${var.name}-watcher"
  min_size                  = var.watchers
  max_size                  = var.watchers + 1
  vpc_zone_identifier       = [for zone in var.zones : aws_subnet.private[zone].id]
  target_group_arns         = [aws_lb_target_group.watcher.arn]
  health_check_type         = "ELB"
  health_check_grace_period = 300
  launch_template {
    id      = aws_launch_template.watcher.id
    version = aws_launch_template.watcher.latest_version
  }
  # A new release: one machine after the other, and never fewer than there should be.
  instance_refresh {
    strategy = "Rolling"
    preferences {
      min_healthy_percentage = 100
      max_healthy_percentage = 200
    }
  }
  tag {
    key                 = "Name"
    value               = "${var.name}-watcher"
    propagate_at_launch = true
  }
  depends_on = [aws_volume_attachment.log, aws_route53_record.log]
}

resource "aws_security_group" "balancer" {
  name        = "${var.name}-balancer"
  description = "The load balancer of the watchers"
  vpc_id      = aws_vpc.cell.id
}

data "aws_ec2_managed_prefix_list" "front" {
  name = "com.amazonaws.global.cloudfront.origin-facing"
}

resource "aws_vpc_security_group_ingress_rule" "balancer" {
  security_group_id = aws_security_group.balancer.id
  description       = "CloudFront"
  prefix_list_id    = data.aws_ec2_managed_prefix_list.front.id
  ip_protocol       = "tcp"
  from_port         = 443
  to_port           = 443
}

resource "aws_vpc_security_group_egress_rule" "balancer" {
  security_group_id            = aws_security_group.balancer.id
  description                  = "To the watchers"
  referenced_security_group_id = aws_security_group.watcher.id
  ip_protocol                  = "tcp"
  from_port                    = local.watcher_port
  to_port                      = local.watcher_port
}

# A watch may be silent for a minute, after which it has a bookmark.
resource "aws_lb" "watcher" {
  name               = "${var.name}-watcher"
  internal           = true
  load_balancer_type = "application"
  security_groups    = [aws_security_group.balancer.id]
  subnets            = [for zone in var.zones : aws_subnet.private[zone].id]
  idle_timeout       = 3600
}

# A watcher shows a certificate that it made itself, which the load balancer does not look at: it keeps tokens from being
# read on the way.
resource "aws_lb_target_group" "watcher" {
  name                 = "${var.name}-watcher"
  vpc_id               = aws_vpc.cell.id
  port                 = local.watcher_port
  protocol             = "HTTPS"
  deregistration_delay = 30
  health_check {
    path     = "/readyz"
    protocol = "HTTPS"
    matcher  = "200"
  }
}

resource "aws_lb_listener" "watcher" {
  load_balancer_arn = aws_lb.watcher.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = aws_acm_certificate_validation.watcher.certificate_arn
  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.watcher.arn
  }
}
